package ops

import (
	"regexp"
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
)

// Ref names one life of a VM and one operation on it. Generation zero means
// any.
type Ref struct {
	VMID       string
	UID        string
	Generation int64
	OpID       string
}

// Rules of the names in a Ref.
var (
	ValidUID  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	ValidVMID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)
	validOpID = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)
)

// Validate refuses names that break the rules.
func (r Ref) Validate() error {
	switch {
	case !ValidVMID.MatchString(r.VMID):
		return Invalid("vm id", r.VMID, ValidVMID.String())
	case !ValidUID.MatchString(r.UID):
		return Invalid("uid", r.UID, ValidUID.String())
	case !validOpID.MatchString(r.OpID):
		return Invalid("operation id", r.OpID, "1 to 128 printable characters")
	case r.Generation < 0:
		return Invalid("generation", strconv.FormatInt(r.Generation, 10), "0 or more")
	}
	return nil
}

// Invalid refuses a value of a call.
func Invalid(what, value, limit string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%s %.80q is not allowed", what, value).
		With(fleet.DetailLimit, limit)
}
