package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

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
	said, err := said(inst, script)
	if err != nil {
		b.t.Fatal(err)
	}
	return said
}

// said is what a script says in a guest.
func said(inst driver.Instance, script string) (string, error) {
	var out, errOut bytes.Buffer
	st, err := inst.Guest().Exec(context.Background(), fleet.ExecSpec{Argv: []string{"sh", "-c", script}}, fleet.Stdio{Stdout: &out, Stderr: &errOut})
	if err != nil || st.ExitCode != 0 {
		return "", fmt.Errorf("%s: %+v, %w: %s", script, st, err, errOut.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// thaw renews the guest of a machine that goes on from memory.
func (b *bench) thaw(vm driver.VM, r driver.Revived, cause string) fleet.Certificate {
	b.t.Helper()
	c, err := thawed(vm, r, cause)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func thawed(vm driver.VM, r driver.Revived, cause string) (fleet.Certificate, error) {
	g, ok := thaw.Of(r.Instance.Guest())
	if !ok {
		return fleet.Certificate{}, errors.New("the guest cannot be renewed")
	}
	req := thaw.Request{
		Key: r.ThawKey, Cause: cause, VM: vm, Address: r.Guest.Address, Nameservers: r.Guest.Nameservers,
		Identity: driver.Identity{Hostname: r.Guest.Hostname, MachineID: r.Guest.MachineID, Token: r.Guest.Token, CertPEM: r.Guest.CertPEM, KeyPEM: r.Guest.KeyPEM},
		Keep:     r.Keep,
	}
	c, err := thaw.Do(context.Background(), g, req)
	for range 5 { // on a busy machine the guest is too slow to tell its clock by
		if err == nil || !errors.Is(err, thaw.ErrLate) {
			break
		}
		c, err = thaw.Do(context.Background(), g, req)
	}
	return c, err
}
