package runner_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
)

// files writes a definition with files beside it and returns how it ended.
func (m *marquee) files(p play, id string, files map[string]string) int {
	m.t.Helper()
	all := map[string]string{"compose.yml": p.compose, ".fuse/owner.json": string(p.marker)}
	for k, v := range files {
		all[k] = v
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, data := range all {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))})
		_, werr := w.Write([]byte(data))
		if err := errors.Join(err, werr); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		m.t.Fatal(err)
	}
	err := m.host.Start(m.t.Context(), m.conn, runner.Request{
		Op: id, Epoch: 1, Project: p.project, Playground: p.id, Verb: decide.VerbOf(decide.Files{}), Limit: 5 * time.Minute, Payload: buf.Bytes(),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return m.end(id).Status
}

// What the compose file uses lies beside it; what differs is kept, and no link
// on the way leads out.
func TestFilesBeside(t *testing.T) {
	t.Parallel()
	d := dockertest.Start(t)
	for _, shell := range []string{"/bin/dash", "/bin/busybox"} {
		t.Run(filepath.Base(shell), func(t *testing.T) {
			m := marqueeOf(t, d, shell)
			m.host.Installation = model.InstallationID("f" + filepath.Base(shell))
			if err := m.host.Enroll(t.Context(), m.conn); err != nil {
				t.Fatal(err)
			}
			p := m.play("pg1")
			at := func(name string) string {
				return filepath.Join(m.host.Layout.Root(), "playgrounds", p.project.String(), name)
			}
			read := func(name string) string {
				b, err := os.ReadFile(name)
				if err != nil {
					return err.Error()
				}
				return string(b)
			}
			if s := m.files(p, "op1", map[string]string{"conf/a b.cfg": "one"}); s != 0 || read(at("conf/a b.cfg")) != "one" {
				t.Errorf("status %d, %s", s, read(at("conf/a b.cfg")))
			}
			p.compose += "# changed\n"
			if s := m.files(p, "op2", map[string]string{"conf/a b.cfg": "two", "new/deep/file": "x"}); s != 0 || read(at("conf/a b.cfg")) != "two" || read(at("new/deep/file")) != "x" {
				t.Errorf("status %d, %s, %s", s, read(at("conf/a b.cfg")), read(at("new/deep/file")))
			}
			if info, err := os.Stat(at("new/deep")); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("%v %v: containers with another user cannot read it", info, err)
			}
			kept := filepath.Join(m.host.Layout.Root(), "aside", p.project.String(), "op2", "conf/a b.cfg")
			if read(kept) != "one" {
				t.Errorf("what was there is not kept: %s", read(kept))
			}
			outside := t.TempDir()
			if err := os.Symlink(outside, at("link")); err != nil {
				t.Fatal(err)
			}
			if s := m.files(p, "op3", map[string]string{"link/file": "x"}); s != 65 {
				t.Errorf("a link that leads out: status %d", s)
			}
			if left, _ := os.ReadDir(outside); len(left) != 0 {
				t.Errorf("written outside: %v", left)
			}
			m.obstacles(p, at)
			if err := m.host.Claim(t.Context(), m.conn, 9); err != nil {
				t.Error(err)
			}
			if err := m.host.Claim(t.Context(), m.conn, 8); !errors.Is(err, runner.ErrSuperseded) || errors.Is(err, runner.ErrBusy) {
				t.Errorf("an older epoch: %v", err)
			}
			m.fullDisk()
			m.ok(p, 10, "gone", decide.Destroy{})
			if _, err := os.Stat(filepath.Join(m.host.Layout.Root(), "aside", p.project.String())); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what was set aside outlives the playground: %v", err)
			}
		})
	}
}

// obstacles puts in the way of files what a container could, and beside them
// what an operation that was cut leaves.
func (m *marquee) obstacles(p play, at func(string) string) {
	m.t.Helper()
	secret := filepath.Join(m.t.TempDir(), "secret")
	root := m.host.Layout.Root()
	ops := filepath.Join(root, "ops", string(m.host.Installation))
	left := []string{filepath.Join(ops, "cut", "payload"), filepath.Join(ops, "never.new", "payload"), filepath.Join(root, "playgrounds", ".new-cut", "env")}
	for _, f := range left {
		if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o700), os.WriteFile(f, []byte("secret"), 0o600)); err != nil {
			m.t.Fatal(err)
		}
	}
	err := errors.Join(
		os.WriteFile(secret, []byte("secret"), 0o600), os.Remove(at("link")),
		syscall.Mkfifo(at("pipe"), 0o600), os.Symlink("/dev/zero", at("endless")), os.Symlink(secret, at("other")),
		os.WriteFile(filepath.Join(ops, "cut", "what"), []byte(p.project.String()+" files 1\n"), 0o600))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, name := range []string{"pipe", "endless", "other"} {
		if s := m.files(p, "op4"+name, map[string]string{name: "x"}); s != 0 {
			m.t.Errorf("%s in the way: status %d", name, s)
		}
		if b, err := os.ReadFile(at(name)); string(b) != "x" {
			m.t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if info, err := os.Lstat(filepath.Join(root, "aside", p.project.String(), "op4other", "other")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		m.t.Errorf("a link was followed when it was set aside: %v, %v", info, err)
	}
	if b, err := os.ReadFile(secret); string(b) != "secret" {
		m.t.Errorf("written through a link: %q, %v", b, err)
	}
	if s := m.files(p, "op5", map[string]string{"conf": "x"}); s != 73 {
		m.t.Errorf("a directory in the way: status %d", s)
	}
	p.compose = "# fuse.roll web x\n# fuse.mount conf\n# fuse.mount data/in/x\n" + p.compose
	if s := m.files(p, "op6", nil); s != 0 {
		m.t.Errorf("status %d", s)
	}
	if err := errors.Join(os.MkdirAll(at("data"), 0o755), os.Symlink("/", at("data/in"))); err != nil {
		m.t.Fatal(err)
	}
	if pr := m.run(p, 1, "op7", decide.Up{}); pr.Status != 65 || !strings.Contains(pr.ErrText, "data/in/x") {
		m.t.Errorf("a mount through a link: %+v", pr)
	}
	for _, f := range append(left, filepath.Join(root, "playgrounds", ".new-op5")) {
		if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
			m.t.Errorf("%s is left: %v", f, err)
		}
	}
}

// fullDisk lets an epoch be lost on its way to the disk: the one before stands.
func (m *marquee) fullDisk() {
	m.t.Helper()
	dir := filepath.Join(m.host.Layout.Root(), "fence", string(m.host.Installation))
	next := filepath.Join(dir, "epoch.new")
	if err := os.Symlink("/dev/full", next); err != nil {
		m.t.Fatal(err)
	}
	if err := m.host.Claim(m.t.Context(), m.conn, 10); fleet.CodeOf(err) != fleet.CodeUnavailable {
		m.t.Errorf("an epoch that could not be kept: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "epoch")); string(b) != "9\n" {
		m.t.Errorf("epoch %q, %v", b, err)
	}
	if err := errors.Join(os.Remove(next), m.host.Claim(m.t.Context(), m.conn, 10)); err != nil {
		m.t.Error(err)
	}
}
