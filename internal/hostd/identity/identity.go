// Package identity tells a host agent's data directory from all others, on
// this machine and elsewhere.
package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/uid"
)

// Identity tells this data directory, machine and boot from all others.
type Identity struct {
	RegistryID string `json:"registry_id"`
	MachineID  string `json:"-"`
	BootID     string `json:"-"`
}

// Load reads the registry id, making it at the first start. A data
// directory that has VMs but no id is refused: a new id would make them
// foreign.
func Load(dir string) (Identity, error) {
	var id Identity
	path := filepath.Join(dir, "registry.json")
	doc, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, serr := os.Stat(filepath.Join(dir, "registry.log")); serr == nil {
			return id, fleet.Errorf(fleet.CodeInternal, "%s is missing, but the registry's log is there", path).
				With(fleet.DetailRemedy, "restore the file, or move the data directory away once its VMs are ended")
		}
		id.RegistryID = uid.New()
		doc, err = json.Marshal(id)
		if err == nil {
			err = durable.WriteFile(path, append(doc, '\n'))
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

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
