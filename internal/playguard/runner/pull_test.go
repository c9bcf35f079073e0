package runner_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/work"
)

// with runs an operation with what it is given, to its end.
func (m *marquee) with(p play, id string, op decide.Op, files ...work.PackedFile) runner.Progress {
	m.t.Helper()
	raw, err := work.Pack(files)
	if err != nil {
		m.t.Fatal(err)
	}
	r := runner.Request{Op: id, Epoch: 1, Project: p.project, Playground: p.id, Verb: decide.VerbOf(op), Payload: raw, Limit: 5 * time.Minute}
	if err := m.host.Start(m.t.Context(), m.conn, r); err != nil {
		m.t.Fatal(err)
	}
	return m.end(id)
}

// Images are pulled before anything of a project is touched, and its logins are
// root's alone and gone when they are taken away.
func TestPullAndAuth(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	p := m.play("pg1", "web")
	if pr := m.with(p, "pull1", decide.Pull{}, work.PackedFile{Name: "images", Data: []byte("missing " + dockertest.Image + "\n")}); pr.Status != 0 || !strings.Contains(pr.ErrText, "image 1 of 1 is there") {
		t.Errorf("%+v", pr)
	}
	dir, err := m.host.Layout.Path("playground", p.project.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a pull made the directory of its project")
	}
	m.ok(p, 1, "files1", decide.Files{})
	before, err := os.ReadFile(filepath.Join(dir, "compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	bad := work.PackedFile{Name: "images", Data: []byte("missing " + dockertest.Image + "\nalways 127.0.0.1:9/none:1\n")}
	if pr := m.with(p, "pull2", decide.Pull{}, bad, work.PackedFile{Name: "docker-config/config.json", Data: []byte(`{"auths":{}}`)}); pr.Status == 0 || pr.Lost {
		t.Errorf("%+v", pr)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "compose.yml")); string(after) != string(before) || err != nil {
		t.Error("a pull that failed touched the project:", err)
	}
	config := filepath.Join(dir, "docker-config", "config.json")
	if _, err := os.Stat(config); err == nil {
		t.Error("the login of a pull stays")
	}
	if pr := m.with(p, "auth1", decide.Auth{}, work.PackedFile{Name: "auth"}, work.PackedFile{Name: "docker-config/config.json", Data: []byte(`{"auths":{"x":{}}}`)}); pr.Status != 0 {
		t.Errorf("%+v", pr)
	}
	info, err := os.Stat(config)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if parent, err := os.Stat(filepath.Dir(config)); err != nil || parent.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", parent, err)
	}
	if pr := m.with(p, "auth2", decide.Auth{}, work.PackedFile{Name: "auth"}); pr.Status != 0 {
		t.Errorf("%+v", pr)
	}
	if _, err := os.Stat(filepath.Dir(config)); err == nil {
		t.Error("a login that was taken away is there")
	}
}
