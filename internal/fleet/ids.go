package fleet

import (
	"regexp"
	"sync"
)

// DefaultVMPrefix precedes a task id to make a VM id.
const DefaultVMPrefix = "fuse-"

// TaskIDRule is what a task id must match, for messages.
const TaskIDRule = `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`

// Patterns are compiled when first used: every program, the guest's agent too,
// links this package, and most starts check no name.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	taskID = pattern(`^` + TaskIDRule + `$`)
	label  = pattern(`^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`)
	hostID = pattern(`^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,62})?$`)
)

// ValidateTaskID refuses an id that hosts, files and URLs could not carry
// verbatim. The id is used as it is, everywhere.
func ValidateTaskID(id string) error {
	if taskID().MatchString(id) {
		return nil
	}
	return Errorf(CodeInvalidArgument, "task_id %.120q is not allowed", id).
		With(DetailLimit, TaskIDRule).
		With(DetailRemedy, "use 1 to 100 letters, digits, dots, underscores or dashes, starting with a letter or digit; or leave it out and one is made")
}

// ValidLabel reports whether a label key or value has the grammar of
// inventory 2.5.
func ValidLabel(s string) bool { return label().MatchString(s) }

// ValidHostID reports whether s can name a host.
func ValidHostID(s string) bool { return hostID().MatchString(s) }

// GuestHostname derives a guest's name from its id: at most 63 lower-case letters, digits
// and dashes (RFC 1123), whatever the id looks like.
func GuestHostname(id string) string {
	name := make([]byte, 0, len(id))
	for _, c := range []byte(id) {
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		default:
			c = '-'
		}
		name = append(name, c)
	}
	name = name[:min(len(name), 63)]
	for len(name) > 0 && name[len(name)-1] == '-' {
		name = name[:len(name)-1]
	}
	return string(name)
}
