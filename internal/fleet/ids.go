package fleet

import "regexp"

// DefaultVMPrefix precedes a task id to make a VM id.
const DefaultVMPrefix = "fuse-"

// TaskIDRule is what a task id must match, for messages.
const TaskIDRule = `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`

var taskID = regexp.MustCompile(`^` + TaskIDRule + `$`)

// ValidateTaskID refuses an id that hosts, files and URLs could not carry
// verbatim. The id is used as it is, everywhere.
func ValidateTaskID(id string) error {
	if taskID.MatchString(id) {
		return nil
	}
	return Errorf(CodeInvalidArgument, "task_id %.120q is not allowed", id).
		With(DetailLimit, TaskIDRule).
		With(DetailRemedy, "use 1 to 100 letters, digits, dots, underscores or dashes, starting with a letter or digit; or leave it out and one is made")
}

var label = regexp.MustCompile(`^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`)

// ValidLabel reports whether a label key or value has the grammar of
// inventory 2.5.
func ValidLabel(s string) bool { return label.MatchString(s) }

var hostID = regexp.MustCompile(`^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,62})?$`)

// ValidHostID reports whether s can name a host.
func ValidHostID(s string) bool { return hostID.MatchString(s) }
