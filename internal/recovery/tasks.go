package recovery

import "github.com/fusevm/fuse/internal/fleet"

// TaskVerdict is what becomes of a task; an empty Status leaves it alone.
type TaskVerdict struct {
	Status fleet.TaskRunStatus
	Rule   string
	Why    string // the task's error, when it fails
}

type taskRule struct {
	name    string
	applies func(task fleet.Task, vm *fleet.VM) bool
	status  fleet.TaskRunStatus
	why     string
}

// taskRules are asked in order; the first that applies decides. A task and its
// environment are written together, so these repair what another version or a
// restored copy left.
var taskRules = []taskRule{
	{
		"ended", func(t fleet.Task, _ *fleet.VM) bool { return t.RunStatus.Done() }, "", "",
	},
	{
		"no environment", func(t fleet.Task, vm *fleet.VM) bool { return vm == nil || vm.UID != t.UID },
		fleet.TaskRunFailed, "its environment is gone",
	},
	{
		"environment ends", func(_ fleet.Task, vm *fleet.VM) bool { return vm.State == fleet.VMStateDestroying },
		fleet.TaskRunFailed, "its environment is being destroyed",
	},
	{
		"environment runs", func(t fleet.Task, vm *fleet.VM) bool {
			return vm.State != fleet.VMStateProvisioning && t.RunStatus == fleet.TaskRunAssigned
		},
		fleet.TaskRunRunning, "",
	},
}

// TriageTask decides what becomes of a task, given the row of its environment
// as recovery leaves it (nil: there is none).
func TriageTask(task fleet.Task, vm *fleet.VM) TaskVerdict {
	for _, r := range taskRules {
		if !r.applies(task, vm) {
			continue
		}
		v := TaskVerdict{Status: r.status, Rule: r.name, Why: r.why}
		if v.Status == fleet.TaskRunFailed && vm != nil && vm.UID == task.UID && vm.End != nil {
			v.Why = vm.End.String()
		}
		return v
	}
	return TaskVerdict{}
}
