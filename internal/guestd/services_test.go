package guestd

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/testkit"
)

// A manifest that is written starts its services in order, their output is
// read as that of processes, and a drain stops them in reverse.
func TestServicesOfTheManifest(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	trace := filepath.Join(t.TempDir(), "trace")
	service := func(name, more string) string {
		return fmt.Sprintf(`%q:{"command":["sh","-c","trap 'echo stop %s >>%s; exit 0' TERM; echo start %s $KEY >>%s; echo I am %s; while :; do sleep 0.05; done"],"env":{"KEY":{"secret":"key"}}%s}`,
			name, name, trace, name, trace, name, more)
	}
	manifest := `{"version":"1","services":{` + strings.Join([]string{
		service("web", `,"depends_on":["app"]`),
		service("app", `,"depends_on":{"db":{"condition":"healthy"}}`),
		service("db", fmt.Sprintf(`,"healthcheck":{"test":["CMD-SHELL","until grep -q db %s; do sleep 0.05; done"],"interval":"10s","timeout":"10s"}`, trace)),
	}, ",") + `}}`
	if err := g.WriteFiles(t.Context(), []fleet.GuestFile{
		{Path: filepath.Join(g.fuseDir, "manifest.json"), Data: []byte(manifest)},
		{Path: filepath.Join(g.fuseDir, "secrets.json"), Data: []byte(`{"key":"hidden"}`)},
	}); err != nil {
		t.Fatal(err)
	}
	list := g.services(t)
	testkit.Eventually(t, waitForGuest, "all run and have said so", func() bool {
		state := ""
		for _, s := range list() {
			state += s.GetName() + " " + s.GetState() + " " + s.GetHealth() + " " + s.GetProcess() + ";"
		}
		return state == "db running passing svc-db.1;app running  svc-app.1;web running  svc-web.1;" && strings.Count(read(t, trace), "\n") == 3
	})
	started := read(t, trace)
	// The web is started once the app runs, whichever of the two writes first.
	if rest, ok := strings.CutPrefix(started, "start db hidden\n"); !ok || rest != "start app hidden\nstart web hidden\n" && rest != "start web hidden\nstart app hidden\n" {
		t.Errorf("started as %q", started)
	}
	if _, err := g.Drain(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimPrefix(read(t, trace), started); got != "stop web\nstop app\nstop db\n" {
		t.Errorf("stopped as %q", got)
	}
	for _, s := range list() {
		if s.GetState() != "stopped" || s.GetExitCode() != 0 || !s.GetEnded() {
			t.Errorf("%v", s)
		}
	}
}

// services asks as a host passes calls on.
func (g *guest) services(t *testing.T) func() []*guestwirev1.ServiceInfo {
	srv := httptest.NewServer(g.Client)
	t.Cleanup(srv.Close)
	services := guestwire.NewSurface(srv.Client(), srv.URL).Services
	return func() []*guestwirev1.ServiceInfo {
		t.Helper()
		res, err := services.ListServices(t.Context(), connect.NewRequest(&guestwirev1.ListServicesRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.GetServices()
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}
