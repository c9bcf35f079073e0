package qemu

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/thaw"
)

// artifact is a place for a capture.
func (b *bench) artifact() driver.Artifact {
	id := ulid.Make().String()
	return driver.Artifact{ID: id, Dir: filepath.Join(b.dir, "snapshots", id)}
}

func (b *bench) sh(inst driver.Instance, script string) string {
	b.t.Helper()
	var out, errOut bytes.Buffer
	st, err := inst.Guest().Exec(context.Background(), fleet.ExecSpec{Argv: []string{"sh", "-c", script}}, fleet.Stdio{Stdout: &out, Stderr: &errOut})
	if err != nil || st.ExitCode != 0 {
		b.t.Fatalf("%s: %+v, %v: %s", script, st, err, errOut.String())
	}
	return strings.TrimSpace(out.String())
}

// thaw renews the guest of a machine that goes on from memory.
func (b *bench) thaw(vm driver.VM, r driver.Revived, cause string) fleet.Certificate {
	b.t.Helper()
	g, ok := thaw.Of(r.Instance.Guest())
	if !ok {
		b.t.Fatal("the guest cannot be renewed")
	}
	c, err := thaw.Do(context.Background(), g, thaw.Request{
		Key: r.ThawKey, Cause: cause, VM: vm, Address: r.Guest.Address, Nameservers: r.Guest.Nameservers,
		Identity: driver.Identity{Hostname: r.Guest.Hostname, MachineID: r.Guest.MachineID, Token: r.Guest.Token, CertPEM: r.Guest.CertPEM, KeyPEM: r.Guest.KeyPEM},
		Keep:     r.Keep,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func TestLiveSnapshotFirst(t *testing.T) {
	b := newBench(t, Config{})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end(inst, vm)
	b.sh(inst, "echo parent > /root/f; (while :; do echo x >> /tmp/tick; sleep 0.1; done) >/dev/null 2>&1 </dev/null & sleep 1")
	a := b.artifact()
	info, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a, Live: true, Step: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", info)
	t.Log(b.sh(inst, "cat /root/f; wc -l < /tmp/tick"))
	child := b.vm()
	r, err := b.d.Fork(t.Context(), child, b.identity(child), a, func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	defer b.end(r.Instance, child)
	t.Log(r.Resumed)
	t.Logf("%+v", b.thaw(child, r, fleet.ThawFork))
	t.Log(b.sh(r.Instance, "cat /root/f; hostname; a=$(wc -l < /tmp/tick); sleep 0.5; b=$(wc -l < /tmp/tick); echo $a $b"))
}
