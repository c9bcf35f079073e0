package guestd

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
	"github.com/fusevm/fuse/internal/testkit"
)

func execStart() *guestwirev1.ExecRequest {
	return &guestwirev1.ExecRequest{Kind: &guestwirev1.ExecRequest_Start{Start: &guestwirev1.ExecStart{}}}
}

func execStdin(n int) *guestwirev1.ExecRequest {
	return &guestwirev1.ExecRequest{Kind: &guestwirev1.ExecRequest_Stdin{Stdin: make([]byte, n)}}
}

var brokenStarts = map[string][]*guestwirev1.ExecRequest{
	"input before the start": {execStdin(1)},
	"nothing known":          {{}},
	"a start without argv":   {execStart()},
}

type rawDoer struct{ transport http.RoundTripper }

func (d rawDoer) Do(req *http.Request) (*http.Response, error) {
	req.Header.Set("Authorization", "Bearer "+testToken)
	return d.transport.RoundTrip(req)
}

// raw is a client without the manners of guestwire.Client.
func (g *guest) raw(t *testing.T) guestwirev1connect.GuestClient {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return g.dial(ctx) }}
	t.Cleanup(transport.CloseIdleConnections)
	return guestwirev1connect.NewGuestClient(rawDoer{transport}, "http://guest")
}

func TestWriteFiles(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 200<<10) // 3.2 MB, several pieces
	files := []struct {
		fleet.GuestFile
		want, parent fs.FileMode
	}{
		{fleet.GuestFile{Path: dir + "/a/b/plain", Data: []byte("x")}, 0o644, 0o755},
		{fleet.GuestFile{Path: dir + "/empty"}, 0o644, 0},
		{fleet.GuestFile{Path: dir + "/program", Data: big, Mode: 0o755}, 0o755, 0},
		{fleet.GuestFile{Path: dir + "/setuid", Mode: 0o4711}, 0o711 | fs.ModeSetuid, 0},
		{fleet.GuestFile{Path: link, Data: []byte("no longer a link")}, 0o644, 0},
		{fleet.GuestFile{Path: g.fuseDir + "/tls/key.pem", Data: []byte("secret")}, 0o600, 0o700},
		{fleet.GuestFile{Path: g.fuseDir + "/health.json", Mode: 0o644}, 0o644, 0o700},
	}
	var send []fleet.GuestFile
	for _, f := range files {
		send = append(send, f.GuestFile)
	}
	for range 2 { // the second time replaces
		if err := g.WriteFiles(t.Context(), send); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range files {
		info, err := os.Lstat(f.Path)
		if err != nil || info.Mode() != f.want {
			t.Errorf("%s: %v, %v; want mode %v", f.Path, info, err, f.want)
		}
		if data, err := os.ReadFile(f.Path); err != nil || !bytes.Equal(data, f.Data) {
			t.Errorf("%s: %d bytes, %v", f.Path, len(data), err)
		}
		if parent, err := os.Stat(filepath.Dir(f.Path)); f.parent != 0 && (err != nil || parent.Mode().Perm() != f.parent) {
			t.Errorf("directory of %s: %v, %v; want mode %v", f.Path, parent, err, f.parent)
		}
	}
	if err := g.WriteFiles(t.Context(), nil); err != nil {
		t.Errorf("no files: %v", err)
	}
	noTemporaries(t, dir)
}

func noTemporaries(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), ".fuse-") {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWriteFilesRefusals(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		file fleet.GuestFile
		code fleet.Code
	}{
		"relative":          {fleet.GuestFile{Path: "a/b"}, fleet.CodeInvalidArgument},
		"not clean":         {fleet.GuestFile{Path: dir + "/../x"}, fleet.CodeInvalidArgument},
		"trailing slash":    {fleet.GuestFile{Path: dir + "/x/"}, fleet.CodeInvalidArgument},
		"the root":          {fleet.GuestFile{Path: "/"}, fleet.CodeInvalidArgument},
		"NUL":               {fleet.GuestFile{Path: dir + "/a\x00b"}, fleet.CodeInvalidArgument},
		"empty":             {fleet.GuestFile{}, fleet.CodeInvalidArgument},
		"mode with a type":  {fleet.GuestFile{Path: dir + "/x", Mode: syscall.S_IFREG | 0o644}, fleet.CodeInvalidArgument},
		"a directory":       {fleet.GuestFile{Path: dir}, fleet.CodeConflict},
		"a file for parent": {fleet.GuestFile{Path: dir + "/file/x"}, fleet.CodeConflict},
		"too long a name":   {fleet.GuestFile{Path: dir + "/" + strings.Repeat("n", 300)}, fleet.CodeConflict},
	} {
		before := fleet.GuestFile{Path: dir + "/before-" + strings.ReplaceAll(name, " ", "-"), Data: []byte("x")}
		tt.file.Data = make([]byte, 5<<20) // more than fits on the way, so that sending meets the refusal
		err := g.WriteFiles(t.Context(), []fleet.GuestFile{before, tt.file, {Path: dir + "/after"}})
		if fleet.CodeOf(err) != tt.code {
			t.Errorf("%s: %v, code %q; want %q", name, err, fleet.CodeOf(err), tt.code)
		}
		if _, err := os.Stat(before.Path); err != nil {
			t.Errorf("%s: the file before it: %v", name, err)
		}
		if _, err := os.Stat(dir + "/after"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file after it: %v", name, err)
		}
	}
	noTemporaries(t, dir)
}

// A file whose data does not match its size, or stops coming, is never seen.
func TestWriteFilesWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	file := func(size int64) *guestwirev1.WriteFilesRequest {
		return &guestwirev1.WriteFilesRequest{Kind: &guestwirev1.WriteFilesRequest_File{File: &guestwirev1.FileStart{Path: path, Size: size}}}
	}
	data := func(n int) *guestwirev1.WriteFilesRequest {
		return &guestwirev1.WriteFilesRequest{Kind: &guestwirev1.WriteFilesRequest_Data{Data: make([]byte, n)}}
	}
	for name, msgs := range map[string][]*guestwirev1.WriteFilesRequest{
		"too short":           {file(3), data(2)},
		"too short, then one": {file(3), data(2), file(0)},
		"too long":            {file(3), data(4)},
		"negative":            {file(-1)},
		"too large a piece":   {file(guestwire.MaxFileChunk + 1), data(guestwire.MaxFileChunk + 1)},
		"data alone":          {data(1)},
	} {
		stream := g.raw(t).WriteFiles(t.Context())
		for _, m := range msgs {
			_ = stream.Send(m) // the answer says why it failed
		}
		if _, err := stream.CloseAndReceive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file is there: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream := g.raw(t).WriteFiles(ctx)
	if err := errors.Join(stream.Send(file(10)), stream.Send(data(5))); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.CloseAndReceive(); err == nil {
		t.Error("a cut call succeeded")
	}
	testkit.Eventually(t, waitForGuest, "nothing is left", func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 0
	})
}
