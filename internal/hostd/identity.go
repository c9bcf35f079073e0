package hostd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/journal"
)

// identity tells this data directory, machine and boot from all others.
type identity struct {
	RegistryID string `json:"registry_id"`
	MachineID  string `json:"-"`
	BootID     string `json:"-"`
}

// loadIdentity reads the registry id, making it at the first start. A data
// directory that has VMs but no id is refused: a new id would make them
// foreign.
func loadIdentity(dir string) (identity, error) {
	var id identity
	path := filepath.Join(dir, "registry.json")
	doc, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, serr := os.Stat(filepath.Join(dir, "registry.log")); serr == nil {
			return id, fleet.Errorf(fleet.CodeInternal, "%s is missing, but the registry's log is there", path).
				With(fleet.DetailRemedy, "restore the file, or move the data directory away once its VMs are ended")
		}
		id.RegistryID = ulid.Make().String()
		doc, err = json.Marshal(id)
		if err == nil {
			err = journal.WriteFile(path, append(doc, '\n'))
		}
	case err == nil:
		err = json.Unmarshal(doc, &id)
		if err == nil && id.RegistryID == "" {
			err = errors.New("no registry_id in it")
		}
	}
	if err != nil {
		return id, fmt.Errorf("registry identity %s: %w", path, err)
	}
	id.MachineID = readLine("/etc/machine-id")
	id.BootID = readLine("/proc/sys/kernel/random/boot_id")
	return id, nil
}

// RegistryID returns the id of the registry in dir, making it at the first
// start. Drivers put it into the names of what they make, and so need it
// before there is a Host.
func RegistryID(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the data directory: %w", err)
	}
	id, err := loadIdentity(dir)
	return id.RegistryID, err
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ownerFile is the owner record in the VM's own directory: it lets a registry
// that lost its log know its VMs again.
const ownerFile = "owner.json"

func (h *core) vmDir(uid string) string { return filepath.Join(h.cfg.Dir, "vms", uid) }

func (h *core) writeOwner(o owner) error {
	dir := h.vmDir(o.VM.UID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make the VM's directory: %w", err)
	}
	doc, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode the owner record: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ownerFile), doc, 0o600); err != nil {
		return fmt.Errorf("write the owner record: %w", err)
	}
	return nil
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
		if h.reg.ended[uid] != nil {
			// Cleared up to the directory itself.
			if err := os.RemoveAll(h.vmDir(uid)); err != nil {
				return fmt.Errorf("clear an ended VM's directory: %w", err)
			}
			continue
		}
		o, err := readOwner(filepath.Join(h.vmDir(uid), ownerFile))
		if err != nil || !o.sound() || o.VM.UID != uid || o.RegistryID != h.ident.RegistryID || h.reg.slots.Taken(o.VM.Slot) {
			h.reg.unreadable[uid] = true
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
}

func readOwner(path string) (o owner, err error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(doc, &o)
}
