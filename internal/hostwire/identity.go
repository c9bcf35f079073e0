package hostwire

import (
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// IdentityHeader carries, in a call, the identity of the host that the caller
// means. Every call but GetInfo and ListVMs, which tell who answers, is refused
// by another host: a registry that never knew a VM must not answer "not found"
// for the one that runs it.
const IdentityHeader = "Fuse-Host-Identity"

// Identity renders the two ids for the header; it is empty while the registry
// is not known yet.
func Identity(registryID, machineID string) string {
	if registryID == "" {
		return ""
	}
	return registryID + "/" + machineID
}

// CheckIdentity refuses a call that was meant for another host. An empty
// header means whoever answers.
func CheckIdentity(header, own string) error {
	if header == "" || header == own {
		return nil
	}
	meant, _, _ := strings.Cut(header, "/")
	answers, _, _ := strings.Cut(own, "/")
	what := "another registry answers (" + answers + ", not %.40s)"
	if meant == answers {
		what = "registry %.40s answers on another machine"
	}
	return fleet.Errorf(fleet.CodeUnavailable, what, meant).
		With(fleet.DetailReason, "identity").
		With(fleet.DetailRemedy, "start the host agent with the data directory that the host was registered with")
}
