package hostd

import (
	"regexp"
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/fence"
)

// Fence is the caller's proof that it leads its fleet now.
type Fence = fence.Fence

// Claim raises a fleet's mark when a term begins.
type Claim = fence.Claim

// Ref names one life of a VM and one operation on it. Generation zero means
// any.
type Ref struct {
	VMID       string
	UID        string
	Generation int64
	OpID       string
}

var (
	validUID  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	validVMID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)
	validOpID = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)
)

func (r Ref) validate() error {
	switch {
	case !validVMID.MatchString(r.VMID):
		return invalid("vm id", r.VMID, validVMID.String())
	case !validUID.MatchString(r.UID):
		return invalid("uid", r.UID, validUID.String())
	case !validOpID.MatchString(r.OpID):
		return invalid("operation id", r.OpID, "1 to 128 printable characters")
	case r.Generation < 0:
		return invalid("generation", strconv.FormatInt(r.Generation, 10), "0 or more")
	}
	return nil
}

func invalid(what, value, limit string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%s %.80q is not allowed", what, value).
		With(fleet.DetailLimit, limit)
}
