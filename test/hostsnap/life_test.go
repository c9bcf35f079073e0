package hostsnap

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/testkit"
)

// grow appends to a file and notes its sum; check compares them.
const (
	grow  = "head -c 65536 /dev/urandom >> /root/grows; sha256sum /root/grows > /root/sum; cat /root/sum"
	check = "sha256sum -c /root/sum >/dev/null && cat /root/sum"
)

func (v *vm) restore(a fleet.Artifact) provider.Resumed {
	v.t.Helper()
	var out provider.Resumed
	err := patiently(v.t, func() (err error) {
		v.begun = time.Now()
		out, err = v.open().(provider.Checkpointer).RestoreSnapshot(v.t.Context(), provider.RestoreRequest{SnapshotID: a.ID, Digest: a.Digest, Kind: a.Kind})
		return err
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return out
}

// One machine through everything: pauses, snapshots of both kinds, restores of
// both, and a fork of its disk.
func TestOneMachineThroughEverything(t *testing.T) {
	r := newRig(t, 0)
	v := r.create("one", small, provider.GoldenOff)
	v.sh("mkdir -p /root /etc/ssh; echo old > /etc/ssh/ssh_host_ed25519_key; touch /etc/fuse/parents")
	v.sh(`sh -c 'exec 3>>/root/open; i=0; while :; do i=$((i+1)); echo $i >&3; sleep 0.02; done' >/dev/null 2>&1 &`)
	told := map[string]int64{} // the most bytes of a phase that were told
	tell := func(p provider.SnapshotProgress) {
		if p.Done < 0 || p.Done > p.Total {
			t.Errorf("told %+v", p)
		}
		told[p.Phase] = max(told[p.Phase], p.Done)
	}
	rounds := testkit.Count(4, 20)
	for i := 0; i < rounds || told["memory"] == 0 && i < 3*rounds; i++ { // a short one may be over before it tells
		sum := v.sh(grow)
		if i == 0 {
			v.sh(hour + "; " + noteClock)
		}
		err := patiently(t, func() error { _, err := v.open().(provider.Pauser).Pause(t.Context(), tell); return err })
		if err != nil {
			t.Fatal(err)
		}
		if l, err := r.List(t.Context()); err != nil || len(l.VMs) != 1 || !l.VMs[0].Paused {
			t.Fatalf("%+v %v", l.VMs, err)
		}
		var out provider.Resumed
		err = patiently(t, func() (err error) {
			v.begun = time.Now()
			out, err = v.open().(provider.Pauser).Resume(t.Context(), tell)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if c := out.Certificate; c == nil || len(c.Lacks()) > 0 || c.Cause != fleet.ThawResume {
			t.Fatalf("certificate %+v", c)
		}
		if i == 0 {
			clockJumped(t, v, out.Certificate)
			v.sh(stopNoting)
		}
		if got := v.sh(check); got != sum {
			t.Fatalf("after pause %d: %q, want %q", i, got, sum)
		}
	}
	if told["memory"] == 0 {
		t.Errorf("pauses and resumptions told %v", told)
	}
	counting(t, v)

	v.sh(hour + "; " + noteClock)
	live := v.take(true)
	sum := v.sh(check)
	counting(t, v) // the source runs on
	v.sh("rm /root/grows /root/sum; echo newer > /root/newer")
	out := v.restore(live)
	if clockJumped(t, v, out.Certificate); out.Certificate.Cause != fleet.ThawRestore {
		t.Errorf("certificate %+v", out.Certificate)
	}
	v.sh(stopNoting)
	if got := v.sh(check + "; ls /root/newer 2>/dev/null || true"); got != sum {
		t.Errorf("restored to %q, want %q", got, sum)
	}
	counting(t, v)

	disk := v.take(false)
	if disk.Kind != fleet.SnapshotKindDisk {
		t.Fatalf("kind %s", disk.Kind)
	}
	counting(t, v)
	f := r.fork("disk-fork", small, provider.Seed{SnapshotID: disk.ID, Digest: disk.Digest, Files: []fleet.GuestFile{{Path: "/fuse/secrets.json", Data: []byte("{}")}}})
	if c := f.created.Certificate; c == nil || len(c.Lacks()) > 0 {
		t.Errorf("certificate %+v", c)
	}
	got := f.sh(check + "; hostname; cat /etc/machine-id; ls /etc/fuse; cat /fuse/secrets.json; sed -n 1p /etc/ssh/ssh_host_ed25519_key")
	want := fmt.Sprintf("%s\ndisk-fork\n%s\nmachine.json\n{}-----BEGIN OPENSSH PRIVATE KEY-----", sum, f.cred.MachineID)
	if got != want {
		t.Errorf("the fork says %q, want %q", got, want)
	}
	inDirectory(t, f.dirOf(), []string{v.token})
	f.destroy()

	v.sh("rm /root/grows")
	if out := v.restore(disk); out.Boot.Mode != fleet.BootCold {
		t.Errorf("mode %s", out.Boot.Mode)
	}
	if got := v.sh(check + "; hostname; ls /etc/fuse"); got != sum+"\none\nmachine.json\nparents" {
		t.Errorf("restored to %q", got)
	}
}

// counting checks that the machine's counter goes on in its open file.
func counting(t *testing.T, v *vm) {
	t.Helper()
	got := strings.Fields(v.sh("sed -n '$p' /root/open; " + grown("/root/open") + "; sed -n '$p' /root/open"))
	var a, b int
	if len(got) != 2 {
		t.Fatalf("the counter says %v", got)
	}
	if _, err := fmt.Sscan(got[0]+" "+got[1], &a, &b); err != nil || b <= a {
		t.Errorf("the counter stands still at %d", a)
	}
}
