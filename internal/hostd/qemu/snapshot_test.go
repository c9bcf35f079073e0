package qemu

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func TestForkChainStress(t *testing.T) {
	b := newBench(t, Config{})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end(inst, vm)
	b.sh(inst, "(while :; do echo x >> /tmp/tick; sleep 0.05; done) >/dev/null 2>&1 </dev/null & sleep 0.2")
	for n := range 12 {
		cur, curInst := vm, inst
		for depth := range 2 {
			a := b.artifact()
			info, err := b.d.Snapshot(t.Context(), cur, driver.SnapshotRequest{To: a, Live: true, Volatile: n%2 == 0})
			if err != nil {
				t.Fatal(n, depth, err)
			}
			child := b.vm()
			r, err := b.d.Fork(t.Context(), child, b.identity(child), a, nil)
			if err != nil {
				t.Fatal(n, depth, err)
			}
			begun := time.Now()
			g, _ := thaw.Of(r.Instance.Guest())
			_, err = thaw.Do(context.Background(), g, thaw.Request{
				Key: r.ThawKey, Cause: fleet.ThawFork, VM: child, Address: r.Guest.Address, Nameservers: r.Guest.Nameservers,
				Identity: driver.Identity{Hostname: r.Guest.Hostname, MachineID: r.Guest.MachineID, Token: r.Guest.Token, CertPEM: r.Guest.CertPEM, KeyPEM: r.Guest.KeyPEM},
			})
			t.Log(n, depth, info.Timings.Stop, info.Timings.Freeze, info.Timings.Took, r.Resumed, time.Since(begun), err)
			if err != nil {
				i := r.Instance.(*instance)
				var st, cpus any
				_ = i.qmp.Execute(context.Background(), "query-status", nil, &st)
				for range 5 {
					_ = i.qmp.Execute(context.Background(), "human-monitor-command", map[string]any{"command-line": "info registers"}, &cpus)
					t.Log(strings.Join(strings.Fields(cpus.(string))[:40], " "))
					time.Sleep(300 * time.Millisecond)
				}
				c, _ := os.ReadFile(filepath.Join(child.Dir, fileConsole))
				t.Logf("%v console: %s", st, c)
				t.FailNow()
			}
			defer b.end(r.Instance, child)
			if err := b.d.Discard(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			cur, curInst = child, r.Instance
		}
		_ = curInst
	}
}
