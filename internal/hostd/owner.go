package hostd

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/hostd/entry"
	"github.com/fusevm/fuse/internal/hostd/identity"
)

// RegistryID returns the id of the registry in dir, making it at the first
// start. Drivers put it into the names of what they make, and so need it
// before there is a Host.
func RegistryID(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the data directory: %w", err)
	}
	id, err := identity.Load(dir)
	return id.RegistryID, err
}

func (h *core) vmDir(uid string) string { return filepath.Join(h.cfg.Dir, "vms", uid) }

func (h *core) writeOwner(o owner) error {
	dir := h.vmDir(o.VM.UID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make the VM's directory: %w", err)
	}
	return o.Write(dir)
}

// reconcileDirs compares the VMs' directories with the log. A directory that
// the log does not know is ours if its owner record is sound and of this
// registry; otherwise it counts as foreign and is left alone.
func (h *core) reconcileDirs() error {
	entries, err := os.ReadDir(filepath.Join(h.cfg.Dir, "vms"))
	if err != nil {
		return fmt.Errorf("read the VMs' directories: %w", err)
	}
	for _, e := range entries {
		uid := e.Name()
		if l := h.reg.lives[uid]; l != nil {
			continue
		}
		if _, over := h.reg.ended.Get(uid); over {
			// Cleared up to the directory itself.
			if err := os.RemoveAll(h.vmDir(uid)); err != nil {
				return fmt.Errorf("clear an ended VM's directory: %w", err)
			}
			continue
		}
		o, err := entry.ReadOwner(h.vmDir(uid))
		if err != nil || !o.Sound() || o.VM.UID != uid || o.RegistryID != h.ident.RegistryID || h.reg.slots.Taken(o.VM.Slot) {
			h.reg.unreadable[uid] = true
			h.reg.spareLocked(o.VM)
			h.log.Warn("vm directory has no readable owner, left alone", "uid", uid)
			continue
		}
		h.recover(o)
	}
	for _, l := range h.reg.lives {
		l.owner.VM.Dir = h.vmDir(l.owner.VM.UID)
	}
	return nil
}

// recover takes a VM back into the log from its own directory. Whether its
// create was answered is no longer known, so it stays.
func (h *core) recover(o owner) {
	h.log.Warn("vm taken back from its own directory", "vm_id", o.VM.ID, "uid", o.VM.UID)
	l := newLife(o, phaseUnadopted)
	h.reg.addLocked(l)
	h.reg.log.Append(record{Owner: &l.owner}, true)
	h.reg.acknowledgeLocked(l)
	h.reg.marks.Recover(o.Mark)
}
