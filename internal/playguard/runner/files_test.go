package runner_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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
		Op: id, Epoch: 1, Project: p.project, Playground: p.id, Verb: decide.VerbOf(decide.Files{}), Limit: time.Minute, Payload: buf.Bytes(),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return m.end(id).Status
}

// What the compose file uses lies beside it; what differs is kept, and no link
// on the way leads out.
func TestFilesBeside(t *testing.T) {
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
			if err := m.host.Claim(t.Context(), m.conn, 9); err != nil {
				t.Error(err)
			}
			if err := m.host.Claim(t.Context(), m.conn, 8); !errors.Is(err, runner.ErrSuperseded) || errors.Is(err, runner.ErrBusy) {
				t.Errorf("an older epoch: %v", err)
			}
		})
	}
}
