package reconcile_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/testkit"
)

var update = flag.Bool("update", false, "write what the scenarios plan into their want sections")

func TestMain(m *testing.M) {
	flag.Parse()
	// Four properties: two million fleets in a soak.
	if err := flag.Set("rapid.checks", strconv.Itoa(testkit.Count(fleets, 500000))); err != nil {
		panic(err)
	}
	testkit.Main(m)
}

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
			s := scenario{t: t, in: reconcile.Input{Now: noon, FleetID: "F", Lives: map[string]reconcile.Life{}}}
			for i := range a.Files {
				f := &a.Files[i]
				got, plans := s.section(f.Name, string(f.Data))
				if !plans {
					continue
				}
				want := &a.Files[i+1]
				if want.Name != "want" {
					t.Fatalf("section %q is not followed by want", f.Name)
				}
				if *update {
					want.Data = []byte(got)
				} else if diff := cmp.Diff(strings.TrimSpace(string(want.Data)), strings.TrimSpace(got)); diff != "" {
					t.Errorf("section %d %q (-want +got):\n%s", i, f.Name, diff)
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

// scenario holds what one section leaves for the next.
type scenario struct {
	t     *testing.T
	in    reconcile.Input
	looks int
}

func (s *scenario) section(name, data string) (got string, plans bool) {
	s.t.Helper()
	var lines [][]string
	for line := range strings.Lines(data) {
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, words)
		}
	}
	switch name {
	case "rows":
		s.in.VMs = nil
		for _, words := range lines {
			s.in.VMs = append(s.in.VMs, s.row(words))
		}
	case "busy":
		s.in.Busy = map[string]bool{}
		for _, words := range lines {
			for _, uid := range words {
				s.in.Busy[uid] = true
			}
		}
	case "restart":
		s.in.Memory = reconcile.Memory{}
		s.in.Clock.Uptime = 0
	case "lives":
		s.lives(lines)
	case "limits":
		s.limits(lines)
	case "paused":
		s.paused(lines)
	case "snapshots":
		s.snapshots(lines)
	case "after":
		s.after(lines)
	case "look":
		return s.look(lines), true
	case "fleet":
		return s.fleet(lines), true
	case "want":
	default:
		s.t.Fatalf("unknown section %q", name)
	}
	return "", false
}

// row reads "UID STATE on HOST at REVISION", then any of "age D", "max-runtime
// D", "idle-timeout D", "on-idle WHAT", "probed" and "seed SNAPSHOT".
func (s *scenario) row(words []string) *fleet.VM {
	host := strings.ReplaceAll(words[3], "nowhere", "")
	vm := &fleet.VM{
		ID: "fuse-" + words[0], UID: words[0], Generation: 1, State: fleet.VMState(words[1]),
		HostID: host, Revision: uint64(s.number(words[5])),
	}
	if vm.State == fleet.VMStateDestroying {
		vm.End = &fleet.Reason{Actor: fleet.ActorMaster, Rule: fleet.RuleManualDestroy}
	}
	for rest := words[6:]; len(rest) > 0; rest = rest[1:] {
		word := rest[0]
		if word == "probed" {
			vm.Probed = true
			continue
		}
		rest = rest[1:]
		switch word {
		case "age":
			vm.CreatedAt = s.in.Now.Add(-s.span(rest[0]))
			vm.UpdatedAt = vm.CreatedAt
		case "max-runtime":
			vm.Spec.MaxRuntime = s.span(rest[0])
		case "idle-timeout":
			vm.Spec.IdleTimeout = s.span(rest[0])
		case "on-idle":
			vm.Spec.OnIdle = rest[0]
		case "seed":
			vm.Spec.SeedSnapshotID = rest[0]
			s.in.Stored.Seeds = map[string]bool{rest[0]: true}
		case "by":
			vm.End = &fleet.Reason{Actor: rest[0], Rule: fleet.RuleStuckTask}
		default:
			s.t.Fatalf("unknown word %q in a row", word)
		}
	}
	s.in.Lives[vm.UID] = reconcile.Life{Tasked: true}
	return vm
}

// lives reads "UID quiet D", "UID open N", "UID held by WHY", "UID paused" and
// "UID without task", several on a line.
func (s *scenario) lives(lines [][]string) {
	for _, words := range lines {
		life := reconcile.Life{Tasked: true}
		for rest := words[1:]; len(rest) > 0; rest = rest[1:] {
			switch rest[0] {
			case "quiet":
				rest = rest[1:]
				life.Quiet = s.span(rest[0])
			case "open":
				rest = rest[1:]
				life.Open = s.number(rest[0])
			case "held":
				life.Held = rest[2]
				rest = rest[2:]
			case "without":
				life.Tasked = false
				rest = rest[1:]
			case "paused":
				life.Paused = true
			default:
				s.t.Fatalf("unknown word %q of a life", rest[0])
			}
		}
		s.in.Lives[words[0]] = life
	}
}

func (s *scenario) limits(lines [][]string) {
	l := &s.in.Limits
	for _, words := range lines {
		switch words[0] {
		case "orphan-tries":
			l.OrphanTries = s.number(words[1])
		case "stuck-after":
			l.StuckAfter = s.span(words[1])
		case "idle-after":
			l.IdleAfter = s.span(words[1])
		case "per-cycle":
			l.PerCycle = s.number(words[1])
		case "per-hour":
			l.PerHour = s.number(words[1])
		case "snapshot-retention":
			l.SnapshotRetention = s.span(words[1])
		case "artifact-idle":
			l.ArtifactIdle = s.span(words[1])
		case "artifact-max":
			l.ArtifactMax = s.number(words[1])
		default:
			s.t.Fatalf("unknown limit %q", words[0])
		}
	}
}

// paused reads "everywhere" or hosts; an empty section ends all pauses.
func (s *scenario) paused(lines [][]string) {
	by := fleet.Pause{Actor: "user:ann", Reason: "maintenance", At: noon}
	s.in.Paused = fleet.Pauses{Hosts: map[string]fleet.Pause{}}
	for _, words := range lines {
		if words[0] == "everywhere" {
			s.in.Paused.All = &by
		} else {
			s.in.Paused.Hosts[words[0]] = by
		}
	}
}

// snapshots reads "ID of VM MODE STATE", then any of "age D", "until D" (from
// now, may be negative), "parent ID", "key KEY", "tenant T", "used D",
// "in-flight", "discard", "ephemeral" and "needed" by work under way.
func (s *scenario) snapshots(lines [][]string) {
	s.in.Stored.Snapshots, s.in.Stored.Uses = nil, map[string]reconcile.ArtifactUse{}
	for _, words := range lines {
		row := &fleet.Snapshot{
			SnapshotID: words[0], VMID: words[2], HostID: "h1", Mode: fleet.SnapshotMode(words[3]), State: fleet.SnapshotState(words[4]),
			Revision: 3, CreatedAt: s.in.Now,
		}
		for rest := words[5:]; len(rest) > 0; rest = rest[1:] {
			word := rest[0]
			switch word {
			case "discard":
				row.Discard = true
				continue
			case "ephemeral":
				row.Ephemeral = true
				continue
			case "needed":
				s.in.Stored.Held = map[string]bool{row.SnapshotID: true}
				continue
			}
			if word == "in-flight" {
				s.in.Stored.Uses[row.SnapshotID] = reconcile.ArtifactUse{Quiet: 1000 * time.Hour, InFlight: true}
				continue
			}
			rest = rest[1:]
			switch word {
			case "age":
				row.CreatedAt = s.in.Now.Add(-s.span(rest[0]))
			case "until":
				until := s.in.Now.Add(s.span(rest[0]))
				row.RetentionUntil = &until
			case "parent":
				row.ParentSnapshotID = rest[0]
			case "key":
				row.LayerKey = rest[0]
			case "tenant":
				row.TenantID = rest[0]
			case "used":
				s.in.Stored.Uses[row.SnapshotID] = reconcile.ArtifactUse{Quiet: s.span(rest[0])}
			default:
				s.t.Fatalf("unknown word %q of a snapshot", word)
			}
		}
		s.in.Stored.Snapshots = append(s.in.Stored.Snapshots, row)
	}
}

// after lets time pass, as both clocks say: "D", or "D and the wall clock JUMP".
func (s *scenario) after(lines [][]string) {
	words := lines[0]
	passed, jump := s.span(words[0]), time.Duration(0)
	if len(words) > 1 {
		jump = s.span(words[len(words)-1])
	}
	s.in.Now = s.in.Now.Add(passed + jump)
	s.in.Clock = reconcile.Clock{Wall: passed + jump, Monotonic: passed, Uptime: s.in.Clock.Uptime + passed}
	s.in.Memory = s.in.Memory.Lapped(s.in.Now, s.in.Clock)
}

func (s *scenario) span(word string) time.Duration {
	d, err := time.ParseDuration(word)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *scenario) number(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// look reads "HOST QUALITY at REVISION UID… UID(stopped) UID(VERDICT) UID(exit:CAUSE)
// +UID(exit:CAUSE)", the last for a life that is no longer listed; "rows-at N"
// as the last words make the rows older than the answer.
func (s *scenario) look(lines [][]string) string {
	s.looks++
	in := s.in
	in.Observations, in.Heard, in.Revision = map[string]fleet.Observation{}, map[string]uint64{}, 100
	for _, words := range lines {
		host, quality := words[0], words[1]
		look := fleet.Look{HostID: host, ID: fmt.Sprintf("%s.%d", host, s.looks), Revision: uint64(s.number(words[3])), At: noon}
		in.Heard[host] = 100
		var vms []fleet.ObservedVM
		var exits []fleet.ExitRecord
		for rest := words[4:]; len(rest) > 0; rest = rest[1:] {
			if rest[0] == "rows-at" {
				in.Revision = uint64(s.number(rest[1]))
				break
			}
			uid, how, _ := strings.Cut(strings.TrimSuffix(rest[0], ")"), "(")
			vm := fleet.ObservedVM{ID: "fuse-" + uid, UID: uid, Generation: 1, Running: how != "stopped" && !strings.HasPrefix(how, "exit:")}
			if vm.Running && how != "" {
				vm.Health = &fleet.HealthStatus{State: fleet.HealthState(how)}
			}
			if why, ended := strings.CutPrefix(how, "exit:"); ended {
				exit := fleet.ExitRecord{UID: strings.TrimPrefix(uid, "+"), Cause: why, At: noon}
				if strings.HasPrefix(uid, "+") {
					exits = append(exits, exit)
					continue
				}
				vm.Exit = &exit
			}
			vms = append(vms, vm)
		}
		switch quality {
		case "complete":
			in.Observations[host] = fleet.SeenComplete(look, vms, exits, 0)
		case "partial":
			in.Observations[host] = fleet.SeenPartial(look, "adopting")
		case "unseen":
			in.Observations[host] = fleet.NotSeen(look, "connection refused")
		default:
			s.t.Fatalf("unknown quality %q", quality)
		}
	}
	return s.plan(in)
}

// fleet reads lines "KIND oldest AGE", "keep-events AGE", "clock wall D passed
// D" and "last-commit in D", all before now.
func (s *scenario) fleet(lines [][]string) string {
	in := s.in
	in.Fleet, in.Revision = true, 100
	in.Clock.LastCommit, in.Kept.KeepIdempotency = in.Now, 24*time.Hour
	span := s.span
	for _, words := range lines {
		switch words[0] {
		case "lives":
			in.Kept.OldestLife = noon.Add(-span(words[2]))
		case "idempotency":
			in.Kept.OldestIdempotency = noon.Add(-span(words[2]))
		case "events":
			in.Kept.OldestEvent = noon.Add(-span(words[2]))
		case "keep-events":
			in.Kept.KeepEvents = span(words[1])
		case "clock":
			in.Clock.Wall, in.Clock.Monotonic = span(words[2]), span(words[4])
		case "last-commit":
			in.Clock.LastCommit = noon.Add(span(words[2]))
		default:
			s.t.Fatalf("unknown line %v", words)
		}
	}
	return s.plan(in)
}

func (s *scenario) plan(in reconcile.Input) string {
	r := reconcile.Plan(in)
	s.in.Memory = r.Memory
	var out bytes.Buffer
	for _, step := range r.Steps {
		switch {
		case step.Snapshot != "":
			fmt.Fprintf(&out, "%s %s on %s\n", step.Kind, step.Snapshot, step.HostID)
		case !step.Before.IsZero():
			fmt.Fprintf(&out, "%s before %s\n", step.Kind, step.Before.Format(time.RFC3339))
		case step.HostID == "":
			fmt.Fprintf(&out, "%s %s\n", step.Kind, step.UID)
		default:
			fmt.Fprintf(&out, "%s %s on %s\n", step.Kind, step.UID, step.HostID)
		}
		fmt.Fprintf(&out, "    %s: %s\n", step.Rule, step.Evidence)
	}
	for _, w := range r.Withheld {
		fmt.Fprintf(&out, "waits %s %s on %s: %s\n", w.Step.Kind, w.Step.UID, w.Step.HostID, w.Why)
	}
	if r.Summary.HealthChecked > 0 {
		fmt.Fprintf(&out, "verdicts %d, failing %d\n", r.Summary.HealthChecked, r.Summary.HealthFailing)
	}
	if r.Summary.MissingSuspected > 0 {
		fmt.Fprintf(&out, "suspected %d\n", r.Summary.MissingSuspected)
	}
	if len(r.Summary.HostsUnseen) > 0 {
		fmt.Fprintf(&out, "unseen %s\n", strings.Join(slices.Sorted(slices.Values(r.Summary.HostsUnseen)), " "))
	}
	for _, skipped := range r.Summary.Skipped {
		fmt.Fprintf(&out, "skipped %s\n", skipped)
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}
