package e2e

import (
	"archive/tar"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
	"github.com/fusevm/fuse/internal/testkit"
)

// fleetOfOne is a server and a host agent, each a process of its own.
type fleetOfOne struct {
	server, host *daemon
	args         []string // of the host agent
}

func newFleetOfOne(t *testing.T) *fleetOfOne {
	t.Helper()
	f := &fleetOfOne{}
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("a-token-for-one-test"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.server = start(t, bins.fuse, dir, nil, "server", "--data-dir", dir, "--listen", "127.0.0.1:0", "--auth-token-file", token)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving, ok := f.server.out.line(ctx, "serving ")
	if !ok {
		t.Fatalf("the server does not serve: %s", f.server.out)
	}
	f.server.url, _, _ = strings.Cut(serving, ",")
	f.server.must("context", "add", "here", f.server.url, "--token-file", token)
	join := filepath.Join(dir, "join")
	if err := os.WriteFile(join, []byte(f.server.must("host", "join-token")), 0o600); err != nil {
		t.Fatal(err)
	}
	at := testkit.Addr(t) // the same after a restart
	data := machineDir(t)
	f.args = []string{"hostd", "--data-dir", data, "--listen", at, "--golden-disk-gb", "0", "--join", f.server.url, "--join-token-file", join, "--host-id", "h1"}
	f.startHost(t, data)
	return f
}

func (f *fleetOfOne) startHost(t *testing.T, data string) {
	t.Helper()
	f.host = start(t, bins.fuse, data, nil, f.args...)
	testkit.Eventually(t, 2*time.Minute, "the host is reachable", func() bool {
		o := f.server.fuse("host", "get", "h1", "--json")
		return o.code == 0 && strings.Contains(o.out, `"reachable":true`)
	})
}

// TestHostKilledInTheMiddleOfAPull ends the host agent while it pulls the image of
// a create: the create ends, nothing is left of it, and once the agent is back the
// same create works.
func TestHostKilledInTheMiddleOfAPull(t *testing.T) {
	before := hostObjects(t)
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 4<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	r := ocitest.New(t)
	ref := r.Push(t, "team/slow:v1", ocitest.Image(t, fleet.NormalizeArch(runtime.GOARCH), v1.Config{},
		ocitest.Layer(t, ocitest.Program("bin/busybox", busybox), ocitest.Program("bin/sh", busybox)),
		ocitest.Layer(t, ocitest.File{Header: tar.Header{Name: "noise", Mode: 0o644}, Content: noise})))
	f := newFleetOfOne(t)
	data := f.host.dir
	part := func() int {
		found, _ := filepath.Glob(filepath.Join(data, "oci", ".tmp-*", "layers", "*"))
		return len(found)
	}
	r.Set(ocitest.Faults{Delay: 300 * time.Millisecond})
	ended := make(chan outcome, 1)
	go func() { ended <- f.server.fuse("create", "--task-id", "slow", "--ram-mb", "256", "--image", ref) }()
	testkit.Eventually(t, 2*time.Minute, "the pull is under way", func() bool { return part() > 0 })
	f.host.kill()
	r.Set(ocitest.Faults{})
	f.startHost(t, data)
	first := <-ended
	t.Logf("the create that was interrupted: %+v", first)
	if first.code == 0 { // it was tried again
		f.server.must("rm", "fuse-slow")
	}
	f.server.gone(2 * time.Minute)
	f.server.must("create", "--task-id", "slow", "--ram-mb", "256", "--image", ref)
	if got := f.server.must("exec", "fuse-slow", "--", "sh", "-c", "busybox wc -c </noise"); strings.TrimSpace(got) != "4194304" {
		t.Errorf("the image has %q bytes of noise", got)
	}
	if n := part(); n != 0 {
		t.Errorf("%d layers of a pull are left", n)
	}
	f.server.must("rm", "fuse-slow")
	f.host.stop()
	f.server.stop()
	sameObjects(t, before)
}
