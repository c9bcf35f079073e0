package qemu

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/testkit"
)

// rotation makes the credentials of a rotation.
func rotation(t *testing.T, number int64) driver.Rotation {
	t.Helper()
	c, err := secrets.NewVMCredentials("vm")
	if err != nil {
		t.Fatal(err)
	}
	return driver.Rotation{Number: number, Token: c.Token, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM}
}

// TestARealGuestIsRotated rotates the token of a real guest, and stops between
// each two steps of it as a host agent would that is killed there. The old
// token is dead after each, a reboot of the guest included.
func TestARealGuestIsRotated(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{})
	vm := b.vm()
	inst := b.run(vm)
	held := func() *instance { return inst.(*instance) } //nolint:forcetypeassert // the driver's own
	recorded := func() guestRecord {
		rec, err := record.Read[guestRecord](vm.Dir, fileGuest)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	takes := func(token string, want bool) {
		t.Helper()
		if got, err := held().guest.Takes(t.Context(), token); err != nil || got != want {
			t.Errorf("the guest takes the token: %v, want %v (%v)", got, want, err)
		}
	}
	works := func(token string) {
		t.Helper()
		var out bytes.Buffer
		st, err := inst.Guest().Exec(t.Context(), fleet.ExecSpec{Argv: []string{"cat", "/fuse/auth-token"}}, fleet.Stdio{Stdout: &out})
		if err != nil || st.ExitCode != 0 || strings.TrimSpace(out.String()) != token {
			t.Errorf("a command: %+v, %v; the guest's file has the token: %v", st, err, strings.TrimSpace(out.String()) == token)
		}
	}
	readopt := func() {
		t.Helper()
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
		var err error
		if inst, err = b.d.Adopt(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
	}
	old := recorded().Token
	one := rotation(t, 1)
	began := time.Now()
	if err := held().Rotate(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	t.Logf("rotated in %v", time.Since(began))
	takes(one.Token, true)
	takes(old, false)
	works(one.Token)
	if rec := recorded(); rec.Token != one.Token || rec.Next != "" || rec.Rotation != 1 {
		t.Errorf("recorded as rotation %d, next %v", rec.Rotation, rec.Next != "")
	}
	if err := held().Rotate(t.Context(), one); err != nil {
		t.Errorf("a repeat: %v", err)
	}
	var stale *driver.StaleRotationError
	if err := held().Rotate(t.Context(), rotation(t, 0)); !errors.As(err, &stale) {
		t.Errorf("an earlier one: %v", err)
	}

	// Killed after the next token was recorded and before the guest was told.
	two := rotation(t, 2)
	rec := recorded()
	rec.Rotation, rec.Next, rec.Cert, rec.Key = 2, two.Token, string(two.CertPEM), string(two.KeyPEM)
	if err := record.Write(vm.Dir, fileGuest, rec); err != nil {
		t.Fatal(err)
	}
	readopt()
	works(one.Token)
	// Killed after the guest was told and before that was recorded.
	if err := held().guest.Rotate(t.Context(), two.Token, two.CertPEM, two.KeyPEM); err != nil {
		t.Fatal(err)
	}
	readopt()
	works(two.Token)
	takes(one.Token, false)
	if rec := recorded(); rec.Token != two.Token || rec.Next != "" {
		t.Error("the record was not settled by the adoption")
	}
	if err := held().Rotate(t.Context(), two); err != nil {
		t.Errorf("the rotation is asked for again: %v", err)
	}

	if err := held().Rotate(t.Context(), rotation(t, 2)); !errors.As(err, &stale) {
		t.Errorf("another of the same number: %v", err)
	}
	// Begun, told to the guest and then forgotten by who had asked for it.
	lost := rotation(t, 3)
	rec = recorded()
	rec.Rotation, rec.Next, rec.Cert, rec.Key = 3, lost.Token, string(lost.CertPEM), string(lost.KeyPEM)
	if err := record.Write(vm.Dir, fileGuest, rec); err != nil {
		t.Fatal(err)
	}
	if err := held().guest.Rotate(t.Context(), lost.Token, lost.CertPEM, lost.KeyPEM); err != nil {
		t.Fatal(err)
	}
	held().guest.Present(two.Token)
	four := rotation(t, 4)
	if err := held().Rotate(t.Context(), four); err != nil {
		t.Errorf("after one that was forgotten: %v", err)
	}
	works(four.Token)
	takes(lost.Token, false)

	reboot(t, inst, vm, false)
	takes(four.Token, true)
	takes(old, false)
	takes(two.Token, false)
	testkit.Eventually(t, bootWithin, "the guest is told its credentials again", func() bool {
		var out bytes.Buffer
		_, err := inst.Guest().Exec(t.Context(), fleet.ExecSpec{Argv: []string{"cat", "/fuse/auth-token", "/fuse/tls/cert.pem"}}, fleet.Stdio{Stdout: &out})
		return err == nil && out.String() == four.Token+string(four.CertPEM)
	})
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootWithin)
	defer cancel()
	if inst, err := b.d.Adopt(ctx, vm); err != nil {
		t.Error(err)
	} else if err := inst.Close(); err != nil {
		t.Error(err)
	}
}
