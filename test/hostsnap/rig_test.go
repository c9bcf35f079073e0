// Package hostsnap holds a host agent with real machines to what it promises of
// those that go on from a capture.
package hostsnap

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/ports"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/internal/hostd/thaw"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// rig is a host agent with real machines.
type rig struct {
	*remote.Provider
	t        testing.TB
	host     *hostdtest.Host
	dir      string
	registry string
}

// newRig starts one. golden bounds what golden snapshots take, in bytes.
func newRig(t testing.TB, golden int64) *rig {
	t.Helper()
	images := ownAgent(t)
	dir := t.TempDir()
	registry, err := hostd.RegistryID(dir)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	drv, err := qemu.New(qemu.Config{Dir: dir, Registry: registry, Images: images, Logger: log, BootTimeout: 8 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, registry: registry}
	t.Cleanup(func() { r.clear(log) })
	r.host = hostdtest.Start(t, hostd.Config{Dir: dir, Driver: drv, Logger: log, GoldenDisk: golden, GoldenRAM: golden}, "")
	r.Provider = r.host.Connect(providertest.NewFleet())
	return r
}

// ownAgent is the shared store of images with a copy of the guest agent: one
// that another test process builds meanwhile would make another shape.
func ownAgent(t testing.TB) *image.Store {
	t.Helper()
	imagetest.Store(t)
	fused := filepath.Join(t.TempDir(), "fused")
	b, err := os.ReadFile(filepath.Join(imagetest.Dir(), "fused"))
	if err == nil {
		err = os.WriteFile(fused, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := image.Open(image.Config{Dir: imagetest.Dir(), Fused: fused})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// clear takes the registry's rules off the host, and sees to it that nothing of
// it runs any more.
func (r *rig) clear(log *slog.Logger) {
	slots, err := ports.OpenSlots(network.Config{Registry: r.registry, Logger: log}, filepath.Join(r.dir, "vms"), ports.Range{})
	if err == nil {
		err = errors.Join(slots.Uninstall(context.Background()), slots.Close())
	}
	if err != nil {
		r.t.Error(err)
	}
	left, err := proc.Named("fuse-" + r.registry + "-")
	if err != nil {
		r.t.Error(err)
	}
	for pid, name := range left {
		if strings.HasPrefix(name, "hold.golden-") { // they are there for the next start
			_ = syscall.Kill(pid, syscall.SIGKILL)
			continue
		}
		r.t.Errorf("process %d of %s is left", pid, name)
	}
}

// vm is one environment of a rig.
type vm struct {
	*rig
	provider.Environment
	created provider.Created
	ref     provider.Ref
	cred    provider.Credentials
	token   string
	begun   time.Time // when it was asked for last, from a capture
}

func op(ref provider.Ref) provider.Ref {
	ref.OpID = ulid.Make().String()
	return ref
}

// request is a create of a machine that nobody has had before.
func (r *rig) request(id string, spec fleet.Spec) provider.CreateRequest {
	r.t.Helper()
	c, err := secrets.NewVMCredentials(id)
	if err != nil {
		r.t.Fatal(err)
	}
	return provider.CreateRequest{
		Ref: provider.Ref{ID: id, UID: ulid.Make().String(), Generation: 1, OpID: ulid.Make().String()}, Spec: spec,
		Credentials: provider.Credentials{Hostname: id, MachineID: c.MachineID, Token: c.Token, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM},
	}
}

var small = fleet.Spec{CPUs: 1, RamMB: 256, StorageGB: 1, Image: "minimal"}

func (r *rig) create(id string, spec fleet.Spec, golden provider.Golden) *vm {
	r.t.Helper()
	req := r.request(id, spec)
	req.Golden = golden
	made, err := r.Create(r.t.Context(), req)
	return r.made(req, made, err)
}

// patiently repeats what a machine that is busy with other tests was too slow for:
// nothing has changed then.
func patiently(t testing.TB, do func() error) error {
	t.Helper()
	err := do()
	for range 4 {
		code := fleet.CodeOf(err) // of a guest that did not stand still in time, too
		if err == nil || code != fleet.CodeDeadlineExceeded && code != fleet.CodeUnavailable && !strings.Contains(err.Error(), thaw.ErrLate.Error()) {
			break
		}
		t.Logf("once more: %v", err)
		err = do()
	}
	return err
}

func (r *rig) fork(id string, spec fleet.Spec, seed provider.Seed) *vm {
	r.t.Helper()
	var req provider.CreateRequest
	var made provider.Created
	var begun time.Time
	err := patiently(r.t, func() (err error) {
		req, begun = r.request(id, spec), time.Now()
		made, err = r.CreateFromSnapshot(r.t.Context(), req, seed)
		return err
	})
	v := r.made(req, made, err)
	v.begun = begun
	return v
}

func (r *rig) made(req provider.CreateRequest, made provider.Created, err error) *vm {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
	v := &vm{rig: r, Environment: made.Environment, created: made, ref: req.Ref, cred: req.Credentials, token: req.Credentials.Token}
	r.t.Cleanup(v.destroy)
	return v
}

// open is the environment with an operation of its own.
func (v *vm) open() provider.Environment { return v.Open(op(v.ref)) }

// destroy ends it; once more does no harm.
func (v *vm) destroy() {
	v.t.Helper()
	if err := v.Destroy(context.WithoutCancel(v.t.Context()), op(v.ref)); err != nil {
		v.t.Error(err)
	}
}

// sh runs a script and returns what it said.
func (v *vm) sh(script string) string {
	v.t.Helper()
	res, err := providertest.Exec(v.t.Context(), v.open(), fleet.ExecSpec{Argv: []string{"sh", "-c", script}}, 1<<20)
	if err != nil || res.ExitCode != 0 {
		v.t.Fatalf("%s: %v, exit %d: %s", script, err, res.ExitCode, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// take captures it.
func (v *vm) take(live bool) fleet.Artifact {
	v.t.Helper()
	env, ok := v.open().(provider.Checkpointer)
	if !ok {
		v.t.Fatal("the environment takes no snapshots")
	}
	var a fleet.Artifact
	err := patiently(v.t, func() (err error) {
		a, err = env.TakeSnapshot(v.t.Context(), provider.TakeRequest{SnapshotID: "snap-" + strings.ToLower(ulid.Make().String()), Live: live})
		env = v.open().(provider.Checkpointer)
		return err
	})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() {
		if err := v.DeleteSnapshot(context.Background(), a.ID, ulid.Make().String()); err != nil {
			v.t.Error(err)
		}
	})
	return a
}

// dirOf is the machine's own directory on the host.
func (v *vm) dirOf() string { return filepath.Join(v.dir, "vms", v.ref.UID) }
