package recovery_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/recovery"
)

var update = flag.Bool("update", false, "write the verdicts into the want sections")

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// TestScenarios runs testdata/*.txtar; testdata/README says how they read.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := scenario{t: t, looks: map[string]fleet.Observation{}}
			for i := range a.Files {
				f := &a.Files[i]
				if f.Name != "want" {
					s.section(f.Name, string(f.Data))
					continue
				}
				got := s.verdicts()
				if *update {
					f.Data = []byte(got)
				} else if diff := cmp.Diff(string(f.Data), got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

type scenario struct {
	t     *testing.T
	rows  []*fleet.VM
	looks map[string]fleet.Observation
	tasks []fleet.Task

	snapshots []fleet.Snapshot
}

func (s *scenario) section(name, data string) {
	for line := range strings.Lines(data) {
		words := strings.Fields(line)
		switch name {
		case "rows":
			vm := &fleet.VM{
				ID: "fuse-" + words[0], UID: words[0], State: fleet.VMState(words[1]), HostID: words[3],
				Revision: s.number(words[5]), CreatedAt: noon,
			}
			if vm.State == fleet.VMStateDestroying {
				vm.End = &fleet.Reason{Actor: "user:ann", Rule: fleet.RuleManualDestroy}
			}
			if len(words) > 6 {
				vm.DrainResult = "ok"
			}
			s.rows = append(s.rows, vm)
		case "look":
			s.looks[words[0]] = s.look(words)
		case "snapshots":
			snap := fleet.Snapshot{SnapshotID: words[0], State: fleet.SnapshotState(words[1])}
			if len(words) > 3 {
				snap.Exports = []fleet.SnapshotExport{{Status: fleet.SnapshotExportStatus(words[3])}}
			}
			s.snapshots = append(s.snapshots, snap)
		case "tasks":
			s.tasks = append(s.tasks, fleet.Task{TaskID: words[0], RunStatus: fleet.TaskRunStatus(words[1]), UID: words[3]})
		default:
			s.t.Fatalf("unknown section %q", name)
		}
	}
}

func (s *scenario) number(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *scenario) look(words []string) fleet.Observation {
	look := fleet.Look{HostID: words[0], ID: "look", Revision: s.number(words[3])}
	var vms []fleet.ObservedVM
	var exits []fleet.ExitRecord
	for _, word := range words[4:] {
		uid, how, _ := strings.Cut(strings.TrimSuffix(word, ")"), "(")
		vm := fleet.ObservedVM{UID: uid, Running: how == ""}
		if why, ended := strings.CutPrefix(how, "exit:"); ended {
			exit := fleet.ExitRecord{UID: strings.TrimPrefix(uid, "+"), Cause: why}
			if strings.HasPrefix(uid, "+") {
				exits = append(exits, exit)
				continue
			}
			vm.Exit = &exit
		}
		vms = append(vms, vm)
	}
	switch words[1] {
	case "complete":
		return fleet.SeenComplete(look, vms, exits, 0)
	case "partial":
		return fleet.SeenPartial(look, "adopting")
	}
	return fleet.NotSeen(look, "refused")
}

func (s *scenario) verdicts() string {
	var out bytes.Buffer
	byUID := map[string]*fleet.VM{}
	for _, vm := range s.rows {
		v := recovery.Triage(recovery.Record{VM: vm}, s.looks[vm.HostID])
		fmt.Fprintf(&out, "%-2s %s (%s): %s\n", vm.UID, v.Action, v.Rule, v.Why)
		left := *vm
		if v.Action == recovery.Destroy {
			fmt.Fprintf(&out, "   %s\n", v.Reason)
			left.State, left.End = fleet.VMStateDestroying, &v.Reason
		} else if v.Reason != (fleet.Reason{}) {
			s.t.Errorf("%s has a reason to end and does not", vm.UID)
		}
		byUID[vm.UID] = &left
	}
	for _, snap := range s.snapshots {
		v := recovery.TriageSnapshot(snap)
		state := v.State
		if state == "" {
			state = "left " + snap.State
		}
		fmt.Fprintf(&out, "%s %s (%s)", snap.SnapshotID, state, v.Rule)
		if v.Why != "" {
			fmt.Fprintf(&out, ": %s", v.Why)
		}
		if v.Exports {
			fmt.Fprint(&out, "; its exports fail")
		}
		fmt.Fprintln(&out)
	}
	for _, task := range s.tasks {
		v := recovery.TriageTask(task, byUID[task.UID])
		status := v.Status
		if status == "" {
			status = "left " + task.RunStatus
		}
		fmt.Fprintf(&out, "task %s %s (%s)", task.TaskID, status, v.Rule)
		if v.Why != "" {
			fmt.Fprintf(&out, ": %s", v.Why)
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

// Only the row's own unfinished creation claims anything; no answer of a host,
// and no lack of one, destroys by itself.
func TestOnlyAnInterruptedCreateIsClaimed(t *testing.T) {
	look := fleet.Look{HostID: "h", Revision: 9}
	looks := []fleet.Observation{
		{},
		fleet.NotSeen(look, "refused"),
		fleet.SeenPartial(look, "adopting"),
		fleet.SeenComplete(look, nil, nil, 3),
		fleet.SeenComplete(look, []fleet.ObservedVM{{UID: "A", Running: true}}, nil, 0),
		fleet.SeenComplete(look, nil, []fleet.ExitRecord{{UID: "A"}}, 0),
	}
	for _, state := range []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDraining, fleet.VMStateDestroying, "unknown"} {
		for i, obs := range looks {
			v := recovery.Triage(recovery.Record{VM: &fleet.VM{UID: "A", HostID: "h", State: state, Revision: 1}}, obs)
			if claims := v.Action == recovery.Destroy; claims != (state == fleet.VMStateProvisioning) {
				t.Errorf("%s with look %d: %+v", state, i, v)
			}
			if obs.Quality() != fleet.Complete && (v.Action == recovery.Demote || v.Action == recovery.Suspect) {
				t.Errorf("%s with look %d, which is not complete: %+v", state, i, v)
			}
			if v.Why == "" || v.Rule == "" {
				t.Errorf("%s with look %d is decided without a why: %+v", state, i, v)
			}
		}
	}
}
