package runner

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Statuses of operations about a branch.
const (
	StatusWork      = 80 // the checkout holds work of its own
	StatusGone      = 81 // the branch is not at the server
	StatusForced    = 82 // where it is does not follow where the checkout is
	StatusElsewhere = 83 // the checkout is on another branch
	StatusNoRoom    = 84
)

// Remote asks the repository's server where a branch is; empty: it is gone. The
// payload is that of a branch operation.
func (h Host) Remote(ctx context.Context, sh Shell, payload []byte) (commit string, err error) {
	res, err := h.call(ctx, sh, payload, "remote", h.Layout.Root(), string(h.Installation))
	if err == nil && res.Status == StatusGone {
		return "", nil
	}
	if err := outcome("ask for a branch", res, err); err != nil {
		return "", err
	}
	commit = strings.TrimSpace(string(res.Stdout))
	if !isCommit(commit) {
		return "", fmt.Errorf("the runner answers %.60q for a branch", commit)
	}
	return commit, nil
}

// Branches lists the branches of a repository.
func (h Host) Branches(ctx context.Context, sh Shell, payload []byte) (out []string, err error) {
	res, err := h.call(ctx, sh, payload, "branches", h.Layout.Root(), string(h.Installation))
	if err := outcome("list branches", res, err); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(res.Stdout)) {
		if name, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "refs/heads/"); ok {
			out = append(out, name)
		}
	}
	return out, nil
}

func isCommit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// Entry is one path of a commit.
type Entry struct {
	Path string
	Mode string // as git writes it: 100644, 100755, 120000 a link, 040000 a directory, 160000 a submodule
	ID   string
	Size int // of a file
}

// File reports whether it is an ordinary file.
func (e Entry) File() bool { return e.Mode == "100644" || e.Mode == "100755" }

// maxTree is as much of a list as the script gives.
const maxTree = 1 << 20

// Tree returns the commit of a checkout and what it has at these paths; one that
// ends with a slash is a directory whose entries are meant.
func (h Host) Tree(ctx context.Context, sh Shell, p model.Project, checkout string, paths ...string) (commit string, list []Entry, err error) {
	args := append([]string{"tree", h.Layout.Root(), string(h.Installation), p.String(), checkout}, paths...)
	res, err := h.call(ctx, sh, nil, args...)
	if err := outcome("read a checkout of "+p.String(), res, err); err != nil {
		return "", nil, err
	}
	commit, rest, _ := strings.Cut(string(res.Stdout), "\n")
	if !isCommit(commit) || len(rest) >= maxTree {
		return "", nil, fleet.Errorf(fleet.CodeConflict, "the checkout of %s has no commit, or too much at a path that is mounted", p)
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\x00"), "\x00") {
		if line == "" {
			continue
		}
		head, path, ok := strings.Cut(line, "\t")
		f := strings.Fields(head)
		if !ok || len(f) != 4 {
			return "", nil, fmt.Errorf("the runner answers %.60q for a path", line)
		}
		e := Entry{Path: path, Mode: f[0], ID: f[2]}
		e.Size, _ = strconv.Atoi(f[3]) // "-" of what is no file
		list = append(list, e)
	}
	return commit, list, nil
}

// Blobs returns the contents of files of a checkout, in their order.
func (h Host) Blobs(ctx context.Context, sh Shell, p model.Project, checkout string, files []Entry) ([][]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	var ask strings.Builder
	room := 0
	for _, f := range files {
		ask.WriteString(f.ID + "\n")
		room += f.Size + 128
	}
	res, err := h.call(ctx, sh, []byte(ask.String()), "blobs", h.Layout.Root(), string(h.Installation), p.String(), checkout, strconv.Itoa(room))
	if err := outcome("read a checkout of "+p.String(), res, err); err != nil {
		return nil, err
	}
	var out [][]byte
	rest := res.Stdout
	for _, f := range files {
		head, body, ok := bytes.Cut(rest, []byte("\n"))
		if want := fmt.Sprintf("%s blob %d", f.ID, f.Size); !ok || string(head) != want || len(body) < f.Size+1 {
			return nil, fmt.Errorf("the runner answers %.60q for %s", head, f.Path)
		}
		out = append(out, body[:f.Size:f.Size])
		rest = body[f.Size+1:]
	}
	return out, nil
}

var _ Shell = (*sshx.Conn)(nil)
