package renew

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/boot"
	"github.com/fusevm/fuse/internal/guestd/freeze"
	"github.com/fusevm/fuse/internal/sshkey"
)

// signFile tells on the disk whose it is.
const signFile = "etc/fuse/machine.json"

type sign struct {
	MachineID string `json:"machine_id"`
}

// Sign notes on the disk which machine it belongs to.
func (m Machine) Sign(id string) error {
	doc, err := json.Marshal(sign{id})
	if err != nil {
		return err
	}
	path := m.path(signFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() { // it is in the way, but its content is somebody's
		if err := os.Rename(path, path+"-"+rand.Text()); err != nil {
			return err
		}
	}
	return boot.PutFile(path, append(doc, '\n'), 0o644)
}

// maxSign bounds what is read of a signature, in bytes.
const maxSign = 4 << 10

// Copied says whether the disk was another machine's before. One that nobody
// has signed is an image's.
func (m Machine) Copied(id string) (bool, error) {
	info, err := os.Lstat(m.path(signFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular(), info.Size() > maxSign:
		return true, nil // a guest made it
	}
	b, err := os.ReadFile(m.path(signFile))
	if err != nil {
		return false, err
	}
	var s sign
	if err := json.Unmarshal(b, &s); err != nil {
		return true, nil //nolint:nilerr // in doubt it is another's
	}
	return s.MachineID != id, nil
}

// Disk renews what a machine that boots finds on a disk that was another's:
// the rest is new with the boot. It signs the disk. late makes the ssh host
// keys that take long to make, and is nil if there are none.
func (m Machine) Disk(id, hostname string) (done []fleet.Renewal, late func() error, err error) {
	seeds, err := m.seeds()
	if err != nil {
		return nil, nil, err
	}
	keys := freeze.SSHKeyKinds(m.Root)
	for _, kind := range keys {
		if err := m.dropKey(kind); err != nil {
			return nil, nil, err
		}
		if kind == sshkey.RSA {
			late = func() error { return m.makeKey(sshkey.RSA, hostname) }
			continue
		}
		if err := m.makeKey(kind, hostname); err != nil {
			return nil, nil, err
		}
	}
	n, err := m.wipeTree("etc/fuse")
	if err != nil {
		return nil, nil, err
	}
	done = []fleet.Renewal{
		{Name: fleet.RenewedSeed, Detail: seeds},
		{Name: fleet.RenewedSSHKeys, Detail: counted(len(keys), "key")},
		{Name: fleet.RenewedFiles, Detail: counted(n, "file") + " removed"},
	}
	return done, late, m.Sign(id)
}

// makeKey makes a host key of a kind that can be made.
func (m Machine) makeKey(kind, hostname string) error {
	private, public, err := sshkey.Make(kind, "root@"+hostname)
	if err != nil {
		return nil //nolint:nilerr // it was removed, and nobody knows how to make one
	}
	path := m.path("etc/ssh/ssh_host_" + kind + "_key")
	return errors.Join(boot.ReplaceFile(path, private, 0o600), boot.ReplaceFile(path+".pub", public, 0o644))
}
