package kept

import (
	"path/filepath"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// Files of a VM's directory that tell why it ended.
const (
	VMMLog  = "qemu.log"
	Console = "console.log"
)

// CausePoweroff is the end that a guest chose; what its VMM wrote says nothing
// then.
const CausePoweroff = "guest_poweroff"

// Exit says why a VM ended: beside the cause how, and the ends of its logs.
func Exit(vm driver.VM, cause, how string) fleet.ExitRecord {
	log := console.Tail(filepath.Join(vm.Dir, VMMLog))
	if cause == CausePoweroff {
		log = ""
	}
	detail := ""
	for _, part := range []struct{ label, text string }{{"", how}, {"QEMU: ", log}, {"console: ", console.Tail(filepath.Join(vm.Dir, Console))}} {
		switch {
		case part.text == "":
		case detail == "":
			detail = part.label + part.text
		default:
			detail += "; " + part.label + part.text
		}
	}
	return fleet.ExitRecord{UID: vm.UID, VMID: vm.ID, Cause: cause, Detail: detail, At: time.Now().UTC()}
}
