package sshx

import (
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Quote makes each argument one word of a POSIX shell and joins them. A NUL,
// which no argument can hold, is an error.
func Quote(args ...string) (string, error) {
	quoted := make([]string, len(args))
	for i, a := range args {
		if strings.ContainsRune(a, 0) {
			return "", fleet.Errorf(fleet.CodeInvalidArgument, "argument %d has a NUL byte, which no command line can hold", i+1)
		}
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " "), nil
}
