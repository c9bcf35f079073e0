package hostsnap

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/capture/uffd"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

// agents is a host with real machines whose agent is killed and comes back.
type agents struct {
	rig
	binary, images, fused, sock string
	cmd                         *exec.Cmd
}

func newAgents(t *testing.T) *agents {
	t.Helper()
	ownAgent(t)
	dir, err := os.MkdirTemp("", "hostsnap")
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "host")
	a := &agents{rig: rig{t: t, dir: data}, binary: filepath.Join(dir, "child"), images: imagetest.Dir(), fused: filepath.Join(dir, "fused"), sock: filepath.Join(dir, "s")}
	out, err := exec.Command("go", "build", "-tags", "failpoints", "-o", a.binary, "../hostdtest/child").CombinedOutput()
	if err != nil {
		t.Fatalf("build the child: %v: %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(a.images, "fused"))
	if err == nil {
		err = errors.Join(os.WriteFile(a.fused, b, 0o755), os.MkdirAll(data, 0o700))
	}
	if err == nil {
		a.registry, err = hostd.RegistryID(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a.Provider, err = remote.New(remote.Config{URL: "unix://" + a.sock, Token: hostdtest.Token, Fencer: providertest.NewFleet()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.kill()
		a.clear(slog.New(slog.DiscardHandler))
		if err := errors.Join(a.Provider.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return a
}

// start runs the agent, with a place at which it dies, and waits until it has
// taken hold of what there is.
func (a *agents) start(dies string) {
	a.t.Helper()
	a.cmd = exec.Command(a.binary, "-dir", filepath.Dir(a.dir), "-addr", "unix://"+a.sock, "-token", hostdtest.Token, "-images", a.images, "-fused", a.fused)
	a.cmd.Env = append(os.Environ(), failpoint.Env+"="+dies)
	a.cmd.Stderr = a.t.Output()
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	testkit.Eventually(a.t, 3*time.Minute, "the agent lists its machines", func() bool {
		l, err := a.List(a.t.Context())
		return err == nil && l.Complete
	})
}

func (a *agents) kill() {
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill() // already gone is as good
	_ = a.cmd.Wait()
	a.cmd = nil
}

// died fails the test unless the agent was killed by its own place to die.
func (a *agents) died(point string, err error) {
	a.t.Helper()
	if !errors.Is(err, provider.ErrNoAnswer) {
		a.t.Fatalf("%s: the agent should have died: %v", point, err)
	}
	ended := a.cmd.Wait()
	a.cmd = nil
	var ee *exec.ExitError
	if !errors.As(ended, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		a.t.Fatalf("%s: the agent ended with %v", point, ended)
	}
}

// has are the processes of this host's machines by what they are, and the
// machines' directories.
func (a *agents) has() []string {
	a.t.Helper()
	found, err := proc.Named("fuse-" + a.registry + "-")
	if err != nil {
		a.t.Fatal(err)
	}
	var out []string
	for _, name := range found {
		out = append(out, "process "+name)
	}
	for _, dir := range []string{"vms", "snapshots"} {
		entries, err := os.ReadDir(filepath.Join(a.dir, dir))
		if err != nil {
			a.t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, dir+" "+e.Name())
		}
	}
	slices.Sort(out)
	return out
}

// TestAgentsThatAreKilledLoseNothing kills the agent in the middle of a fork, a
// restore, a pause, a resumption and a snapshot: the next one has the machine as
// it was before or after, its processes go on, and nothing else is left.
func TestAgentsThatAreKilledLoseNothing(t *testing.T) {
	a := newAgents(t)
	setting, err := os.ReadFile(uffd.Setting)
	if err != nil {
		t.Fatal(err)
	}
	a.start("")
	v := a.create("killed", small, provider.GoldenOff)
	v.sh("echo word > /root/word; (while :; do echo >> /root/beats; sleep 0.1; done) >/dev/null 2>&1 </dev/null &")
	snap := v.take(true)
	with := a.has()
	all := testkit.Count(0, 1) == 1
	for _, tt := range []struct {
		point string
		short bool
		do    func() error
	}{
		{point: "qemu.start.seed", do: func() error { return v.forked(snap) }},
		{point: "qemu.start.spawned", do: func() error { return v.forked(snap) }},
		{point: "qemu.start.resume", do: func() error { return v.forked(snap) }},
		{point: "hostd.fork.thawed", short: true, do: func() error { return v.forked(snap) }},
		{point: "qemu.revive.spawned", do: func() error { return v.restored(snap) }},
		{point: "qemu.start.resume", do: func() error { return v.restored(snap) }},
		{point: "qemu.revive.kept", do: func() error { return v.restored(snap) }},
		{point: "hostd.restore.kept", short: true, do: func() error { return v.restored(snap) }},
		{point: "hostd.restore.answer", do: func() error { return v.restored(snap) }},
		{point: "qemu.capture.freeze", do: v.snapped},
		{point: "qemu.capture.rotated", do: v.snapped},
		{point: "qemu.capture.record", do: v.snapped},
		{point: "qemu.capture.stop", do: v.paused},
		{point: "qemu.capture.pause", do: v.paused},
		{point: "hostd.pause.answer", do: v.paused},
		{point: "qemu.revive.spawned", do: v.resumed},
		{point: "hostd.resume.kept", short: true, do: v.resumed},
	} {
		if !all && !tt.short {
			continue
		}
		a.kill()
		a.start(tt.point + "=exit")
		err := tt.do()
		for range 4 { // on a busy machine a renewal may take too long before it comes there
			if errors.Is(err, provider.ErrNoAnswer) {
				break
			}
			t.Logf("%s: once more: %v", tt.point, err)
			err = tt.do()
		}
		a.died(tt.point, err)
		a.start("")
		v.wake(tt.point)
		if got := v.sh("cat /root/word; " + grown("/root/beats") + " && echo goes on"); got != "word\ngoes on" {
			t.Errorf("%s: the machine says %q", tt.point, got)
		}
		testkit.Eventually(t, 3*time.Minute, tt.point+" leaves nothing", func() bool { return slices.Equal(a.has(), with) })
		if now, err := os.ReadFile(uffd.Setting); err != nil || string(now) != string(setting) {
			t.Errorf("%s: the kernel's setting is %s and was %s, %v", tt.point, now, setting, err)
		}
	}
}

func (v *vm) forked(a fleet.Artifact) error {
	_, err := v.CreateFromSnapshot(v.t.Context(), v.request("fork", small), provider.Seed{SnapshotID: a.ID, Digest: a.Digest, Live: true})
	return err
}

func (v *vm) restored(a fleet.Artifact) error {
	_, err := v.open().(provider.Checkpointer).RestoreSnapshot(v.t.Context(), provider.RestoreRequest{SnapshotID: a.ID, Digest: a.Digest, Kind: a.Kind})
	return err
}

func (v *vm) snapped() error {
	_, err := v.open().(provider.Checkpointer).TakeSnapshot(v.t.Context(), provider.TakeRequest{SnapshotID: "snap-" + strings.ToLower(ulid.Make().String()), Live: true})
	return err
}

func (v *vm) paused() error {
	_, err := v.open().(provider.Pauser).Pause(v.t.Context(), nil)
	return err
}

// resumed pauses it, too.
func (v *vm) resumed() error {
	if err := v.paused(); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	_, err := v.open().(provider.Pauser).Resume(v.t.Context(), nil)
	return err
}

// wake resumes it if it is paused.
func (v *vm) wake(point string) {
	v.t.Helper()
	l, err := v.List(v.t.Context())
	if err != nil || len(l.VMs) != 1 {
		v.t.Fatalf("%s: %+v, %v", point, l.VMs, err)
	}
	if !l.VMs[0].Paused {
		return
	}
	if _, err := v.open().(provider.Pauser).Resume(v.t.Context(), nil); err != nil {
		v.t.Fatalf("%s: resume: %v", point, err)
	}
}
