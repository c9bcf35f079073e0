// Package renew gives a machine that was made of another one's capture what it
// must share with none: randomness, time, names, keys and files. It is run
// while no process of users runs, and stops at the first thing that fails.
package renew

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/boot"
	"github.com/fusevm/fuse/internal/guestd/freeze"
	"github.com/fusevm/fuse/internal/sshkey"
)

// Request is what the machine gets. Its token and certificate are the server's.
type Request struct {
	Generation, Cause   string
	Entropy             []byte
	Now                 time.Time // the host's
	Hostname, MachineID string
	Address             string
	Nameservers         []string
	SSHKeys             map[string]Key // by kind
}

// Key is one ssh host key, as its two files hold it.
type Key struct{ Private, Public []byte }

// MinEntropy is how many bytes the kernel's generator is given at least.
const MinEntropy = 32

// Kernel is what the kernel does for a renewal.
type Kernel interface {
	Reseed(entropy []byte) error
	SetClock(now time.Time) (by time.Duration, err error)
	SetHostname(name string) error
	// FirstAddress is that of the machine's interface, with its prefix; to ask for
	// all Addresses costs ten times as much.
	FirstAddress() (string, error)
	Addresses() ([]string, error)
}

// Machine is what is renewed. Root is / but in tests.
type Machine struct {
	Root   string
	Kernel Kernel
}

// GenerationFile tells processes which continuation they live in.
const GenerationFile = "run/fuse/generation"

// same says that the machine itself goes on, which keeps what is its own.
func (r Request) same() bool { return Same(r.Cause) }

// Same says whether a continuation is of the machine itself.
func Same(cause string) bool { return cause == fleet.ThawRestore || cause == fleet.ThawResume }

// Do renews everything of a machine that was captured with its memory, in the
// order of fleet.CertificateNames. set is by how much the clock was set.
func (m Machine) Do(ctx context.Context, r Request) (done []fleet.Renewal, set time.Duration, err error) {
	for _, step := range []struct {
		name string
		do   func() (string, error)
	}{
		{fleet.RenewedGeneration, func() (string, error) { return r.Generation, m.generation(r.Generation) }},
		{fleet.RenewedRNG, func() (string, error) { return m.reseed(r.Entropy) }},
		{fleet.RenewedClock, func() (string, error) {
			if r.Now.Year() < firstYear {
				return "", errors.New("the host's clock is not set")
			}
			set, err = m.Kernel.SetClock(r.Now)
			return "set by " + set.Round(time.Millisecond).String(), err
		}},
		{fleet.RenewedNetwork, func() (string, error) { return m.network(r.Address) }},
		{fleet.RenewedHostname, func() (string, error) { return m.names(r) }},
		{fleet.RenewedMachineID, func() (string, error) { return m.machineID(r) }},
		{fleet.RenewedSeed, m.seeds},
		{fleet.RenewedSSHKeys, func() (string, error) { return m.sshKeys(r) }},
		{fleet.RenewedFiles, func() (string, error) { return m.files(r) }},
	} {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		detail, err := step.do()
		if err != nil {
			return nil, 0, fmt.Errorf("renew %s: %w", step.name, err)
		}
		done = append(done, fleet.Renewal{Name: step.name, Detail: detail})
	}
	return done, set, nil
}

// firstYear is the first in which a host's clock can be believed.
const firstYear = 2024

func (m Machine) path(p string) string { return filepath.Join(m.Root, p) }

func (m Machine) generation(g string) error {
	path := m.path(GenerationFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return boot.PutFile(path, []byte(g+"\n"), 0o644)
}

func (m Machine) reseed(entropy []byte) (string, error) {
	if len(entropy) < MinEntropy {
		return "", fmt.Errorf("%d bytes of entropy are fewer than %d", len(entropy), MinEntropy)
	}
	return fmt.Sprintf("%d bytes of the host's", len(entropy)), m.Kernel.Reseed(entropy)
}

// network checks that the machine has the address by which its host knows it.
func (m Machine) network(want string) (string, error) {
	if want == "" {
		return "the host did not tell an address", nil
	}
	if first, err := m.Kernel.FirstAddress(); err == nil && first == want {
		return want, nil
	}
	have, err := m.Kernel.Addresses()
	if err != nil {
		return "", err
	}
	if !slices.Contains(have, want) {
		return "", fmt.Errorf("the machine has the addresses %v and should have %s", have, want)
	}
	return want, nil
}

// names gives the machine its name; the old one no longer resolves to it.
func (m Machine) names(r Request) (string, error) {
	if r.same() {
		return kept, nil
	}
	former, _ := os.ReadFile(m.path("etc/hostname"))
	if err := m.Kernel.SetHostname(r.Hostname); err != nil {
		return "", err
	}
	return r.Hostname, boot.WriteEtc(m.path("etc"), strings.TrimSpace(string(former)), r.Hostname, r.MachineID, r.Nameservers)
}

// machineID checks what names wrote.
func (m Machine) machineID(r Request) (string, error) {
	id := r.MachineID
	if r.same() {
		return kept, nil
	}
	b, err := os.ReadFile(m.path("etc/machine-id"))
	if err != nil {
		return "", err
	}
	if got := strings.TrimSpace(string(b)); got != id || id == "" {
		return "", fmt.Errorf("the machine's id is %q and should be %q", got, id)
	}
	return id, nil
}

// kept is told of what stays as it is.
const kept = "kept"

// seedFiles are where images keep randomness from boot to boot.
var seedFiles = []string{"var/lib/systemd/random-seed", "var/lib/urandom/random-seed", "var/lib/misc/random-seed", "var/lib/seedrng/seed.credit", "var/lib/seedrng/seed.no-credit"}

// seedSize is a seed's, in bytes.
const seedSize = 512

func (m Machine) seeds() (string, error) {
	n := 0
	for _, name := range seedFiles {
		if _, err := os.Lstat(m.path(name)); err != nil {
			continue
		}
		seed := make([]byte, seedSize)
		_, _ = rand.Read(seed) // never fails
		if err := boot.ReplaceFile(m.path(name), seed, 0o600); err != nil {
			return "", err
		}
		n++
	}
	return counted(n, "file"), nil
}

func counted(n int, what string) string {
	switch n {
	case 0:
		return "none there"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// sshKeys replaces the host keys that are there.
func (m Machine) sshKeys(r Request) (string, error) {
	if r.same() {
		return kept, nil
	}
	kinds := freeze.SSHKeyKinds(m.Root)
	for _, kind := range kinds {
		key := r.SSHKeys[kind]
		if len(key.Private) == 0 || len(key.Public) == 0 {
			var err error
			if key.Private, key.Public, err = sshkey.Make(kind, "root@"+r.Hostname); err != nil {
				// One of a kind that cannot be made again must not stay.
				if err := m.dropKey(kind); err != nil {
					return "", err
				}
				continue
			}
		}
		path := m.path("etc/ssh/ssh_host_" + kind + "_key")
		if err := boot.ReplaceFile(path, key.Private, 0o600); err != nil {
			return "", err
		}
		if err := boot.ReplaceFile(path+".pub", key.Public, 0o644); err != nil {
			return "", err
		}
	}
	return counted(len(kinds), "key"), nil
}

func (m Machine) dropKey(kind string) error {
	path := m.path("etc/ssh/ssh_host_" + kind + "_key")
	err := os.Remove(path)
	if perr := os.Remove(path + ".pub"); !errors.Is(perr, fs.ErrNotExist) {
		err = errors.Join(err, perr)
	}
	return err
}

// Rehearse looks where a renewal will, so that the kernel has it in memory.
func (m Machine) Rehearse() {
	for _, name := range append([]string{GenerationFile, signFile, "etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf"}, seedFiles...) {
		_, _ = os.Lstat(m.path(name))
	}
	_ = freeze.SSHKeyKinds(m.Root)
}

// files removes what the captured machine was given, and notes whose disk it is
// now. Its own are given again by its host.
func (m Machine) files(r Request) (string, error) {
	if r.same() {
		return kept, nil
	}
	n := 0
	for _, dir := range []string{"fuse", "etc/fuse"} {
		gone, err := m.wipeTree(dir)
		if err != nil {
			return "", err
		}
		n += gone
	}
	return counted(n, "file") + " removed", m.Sign(r.MachineID)
}

// servicesDir has the roots of services that run in images of their own, and how
// they are entered: they go on as all processes do.
const servicesDir = "fuse/services"

// wipeTree overwrites and removes the files of a directory, which stays, as does
// what tells whose disk it is. What is mounted below it is not part of it.
func (m Machine) wipeTree(dir string) (int, error) {
	n := 0
	var top unix.Stat_t
	err := filepath.WalkDir(m.path(dir), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			if path == m.path(dir) {
				top = st
			}
			if st.Dev != top.Dev || path == m.path(servicesDir) {
				return fs.SkipDir
			}
			return nil
		}
		if path == m.path(signFile) {
			return nil // it holds no secret, and Sign writes over it
		}
		n++
		return Wipe(path)
	})
	return n, err
}

// wipeChunk is how much is overwritten at a time, in bytes.
const wipeChunk = 64 << 10

// Wipe overwrites a file where it lies, on the disk too, and removes it. A link
// is removed and not followed.
func Wipe(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		zeros := make([]byte, min(info.Size(), wipeChunk))
		for left := info.Size(); left > 0 && err == nil; left -= int64(len(zeros)) {
			_, err = f.Write(zeros[:min(left, int64(len(zeros)))])
		}
		err = errors.Join(err, f.Sync())
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return os.Remove(path)
}
