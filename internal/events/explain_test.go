package events

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
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
)

var update = flag.Bool("update", false, "write the golden texts anew")

// constants are the string constants of package fleet whose names begin with a
// prefix, by name.
func constants(t *testing.T, prefix string) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../fleet/*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != len(spec.Names) {
				return true
			}
			for i, id := range spec.Names {
				lit, ok := spec.Values[i].(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING || !strings.HasPrefix(id.Name, prefix) {
					continue
				}
				if out[id.Name], err = strconv.Unquote(lit.Value); err != nil {
					t.Fatal(err)
				}
			}
			return true
		})
	}
	if len(out) < 3 {
		t.Fatalf("only %d constants begin with %s", len(out), prefix)
	}
	return out
}

// golden compares named texts with an archive.
func golden(t *testing.T, file string, texts map[string]string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		a := &txtar.Archive{Comment: []byte("Made by go test ./internal/events -update. Read what changed before you keep it.\n")}
		for _, name := range slices.Sorted(mapKeys(texts)) {
			a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(texts[name])})
		}
		if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, f := range a.Files {
		want[f.Name] = string(f.Data)
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("%s (-update writes it anew):\n%s", path, diff)
	}
}

func mapKeys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// life is a whole life up to its end by a rule.
func life(reason fleet.Reason, state fleet.VMState) Case {
	vm := func(seq uint64, after time.Duration, typ string, state fleet.VMState, more func(*fleet.Event)) fleet.Event {
		e := fleet.Event{Seq: seq, EntityType: "vm", EntityID: "fuse-job", UID: "01U", VMID: "fuse-job", HostID: "h1", Type: typ, State: state, At: noon.Add(after)}
		if more != nil {
			more(&e)
		}
		return e
	}
	payload := func(v any) func(*fleet.Event) {
		return func(e *fleet.Event) { e.Payload, _ = json.Marshal(v) }
	}
	boot := fleet.BootRecord{Mode: fleet.BootCold, Steps: []fleet.StepTime{{Step: "place", Took: 1500 * time.Microsecond}, {Step: "host_create", Took: 5 * time.Second}}}
	c := Case{Now: noon.Add(time.Hour), Events: []fleet.Event{
		vm(1, 0, fleet.EventVMProvisioning, fleet.VMStateProvisioning, func(e *fleet.Event) {
			e.Reason = &fleet.Reason{Actor: "user:ann", Rule: fleet.RuleRequested}
		}),
		{Seq: 2, EntityType: "task", EntityID: "job", UID: "01U", Type: fleet.EventTaskAssigned, At: noon},
		vm(3, 0, fleet.EventVMScheduled, "", payload(Placement{
			PlacementDecision: fleet.PlacementDecision{HostID: "h1", Policy: fleet.PlacementSpread, Candidates: 2, HeadroomCPUs: 3, HeadroomRam: 2048},
			Refused:           []string{"state refused 1"},
		})),
	}}
	if reason.Rule != fleet.RuleCreateInterrupted && reason.Rule != fleet.RuleProvisionFailed {
		c.Events = append(c.Events, vm(4, 6*time.Second, fleet.EventVMRunning, fleet.VMStateRunning, payload(boot)),
			fleet.Event{Seq: 5, EntityType: "secrets", EntityID: "fuse-job", UID: "01U", Type: fleet.EventSecretsDeployed, At: noon.Add(6 * time.Second), Payload: json.RawMessage(`{"count":2,"names":["A","B"]}`)})
		c.Startup = &fleet.StartupLog{ExitCode: 0, Output: []byte("done\n"), EndedAt: noon.Add(5 * time.Second)}
	}
	if reason.Rule == "" {
		return c
	}
	r := reason
	c.Events = append(c.Events,
		vm(6, 10*time.Minute, fleet.EventVMDestroying, fleet.VMStateDestroying, func(e *fleet.Event) { e.Reason = &r }),
		vm(7, 10*time.Minute+2*time.Second, fleet.EventVMRemoved, state, func(e *fleet.Event) { e.Reason = &r }))
	c.Ended = &fleet.Life{
		UID: "01U", VMID: "fuse-job", TaskID: "job", HostID: "h1", Owner: "ann", State: state, Reason: reason,
		CreatedAt: noon, EndedAt: noon.Add(10*time.Minute + 2*time.Second),
	}
	return c
}

func living(state fleet.VMState) Case {
	c := life(fleet.Reason{}, "")
	c.VM = &fleet.VM{ID: "fuse-job", UID: "01U", TaskID: "job", HostID: "h1", Owner: "ann", State: state, CreatedAt: noon}
	return c
}

// render is a story as the command line prints it, more or less.
func render(s Story) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", s.Summary)
	if s.Cut {
		b.WriteString("(the beginning is not kept any more)\n")
	}
	for _, f := range s.Facts {
		fmt.Fprintf(&b, "%s  %s\n", f.At.Format("15:04:05"), f.Text)
		for _, d := range f.Detail {
			fmt.Fprintf(&b, "            %s\n", d)
		}
		if f.Reason != nil {
			fmt.Fprintf(&b, "            rule %s, by %s\n", f.Reason.Rule, f.Reason.Actor)
			if f.Reason.Evidence != "" {
				fmt.Fprintf(&b, "            evidence: %s\n", f.Reason.Evidence)
			}
		}
	}
	fmt.Fprintf(&b, "%s\n", s.Next)
	return b.String()
}

// Every rule by which something can end has words of its own.
func TestEveryEndIsExplained(t *testing.T) {
	actors := map[string]string{
		fleet.RuleManualDestroy: "user:ann", fleet.RuleTaskCompleted: "user:master", fleet.RuleProvisionFailed: fleet.ActorLifecycle,
		fleet.RuleCreateInterrupted: fleet.ActorRecovery,
	}
	texts := map[string]string{}
	for name, rule := range constants(t, "Rule") {
		if _, changes := changeRules[rule]; changes {
			continue
		}
		if _, ok := endWords[rule]; !ok {
			t.Errorf("%s (%s) has no words: add them to endWords, or to changeRules when nothing ends by it", name, rule)
			continue
		}
		actor, state := actors[rule], fleet.VMStateDestroyed
		if actor == "" {
			actor = fleet.ActorReconcile
		}
		if rule == fleet.RuleProvisionFailed || rule == fleet.RuleCreateInterrupted {
			state = fleet.VMStateFailed
		}
		texts[rule] = render(Explain(life(fleet.Reason{Actor: actor, Rule: rule, Evidence: "what was seen"}, state)))
	}
	golden(t, "ends.txtar", texts)
}

func TestEveryStateIsExplained(t *testing.T) {
	texts := map[string]string{}
	for name, change := range map[string]func(*Case){
		"provisioning":                func(c *Case) { c.VM.State, c.Events, c.Startup = fleet.VMStateProvisioning, c.Events[:3], nil },
		"running":                     func(*Case) {},
		"running, with an age limit":  func(c *Case) { c.VM.Spec.MaxRuntime = 2 * time.Hour },
		"running, with an idle limit": func(c *Case) { c.IdleTimeout = 10 * time.Minute },
		"running, with both limits":   func(c *Case) { c.MaxRuntime, c.VM.Spec.IdleTimeout = 2*time.Hour, time.Minute },
		"running, over its age":       func(c *Case) { c.MaxRuntime, c.IdleTimeout = 50*time.Minute, time.Minute },
		"running, over its age and paused": func(c *Case) {
			c.VM.Spec.MaxRuntime, c.Sight = 50*time.Minute, &Sight{LastSeen: c.Now, PausedSince: noon.Add(40 * time.Minute)}
		},
		"running, paused and without limits": func(c *Case) { c.Sight = &Sight{LastSeen: c.Now, PausedSince: noon} },
		"running, host not seen": func(c *Case) {
			c.Sight = &Sight{MissedSince: noon.Add(30 * time.Minute), Reason: "connection refused"}
			c.Host = []fleet.Event{{
				Seq: 9, EntityType: "host", EntityID: "h1", Type: fleet.EventHostUnreachable, At: noon.Add(31 * time.Minute),
				Reason: &fleet.Reason{Actor: fleet.ActorReconcile, Rule: "host_unreachable", Evidence: "3 looks missed"},
			}}
		},
		"running, beginning forgotten": func(c *Case) { c.Events = c.Events[3:] },
		"draining":                     func(c *Case) { c.VM.State = fleet.VMStateDraining },
		"destroying": func(c *Case) {
			c.VM.State, c.VM.End = fleet.VMStateDestroying, &fleet.Reason{Actor: "user:ann", Rule: fleet.RuleManualDestroy}
		},
		"destroying, host not seen": func(c *Case) {
			c.VM.State, c.VM.End = fleet.VMStateDestroying, &fleet.Reason{Actor: "user:ann", Rule: fleet.RuleManualDestroy}
			c.Sight = &Sight{MissedSince: noon.Add(30 * time.Minute)}
		},
		"startup script failed":    func(c *Case) { c.Startup.ExitCode = 3 },
		"startup script timed out": func(c *Case) { c.Startup.TimedOut = true },
	} {
		c := living(fleet.VMStateRunning)
		change(&c)
		texts[name] = render(Explain(c))
	}
	golden(t, "states.txtar", texts)
}

// Every event has a sentence of its own, and the one that it has fits.
func TestEveryEventIsTold(t *testing.T) {
	texts := map[string]string{}
	known := map[string]bool{}
	for name, typ := range constants(t, "Event") {
		known[typ] = true
		if sentences[typ] == nil {
			t.Errorf("%s (%s) has no sentence", name, typ)
			continue
		}
		texts[typ] = Sentence(&fleet.Event{
			EntityType: "x", EntityID: "ID", Type: typ, Error: "what went wrong", Reason: &fleet.Reason{Actor: "user:ann", Rule: fleet.RuleManualDestroy},
		}) + "\n"
	}
	for typ := range sentences {
		if !known[typ] {
			t.Errorf("there is no event %s", typ)
		}
	}
	golden(t, "events.txtar", texts)
}

// The reference page lists exactly the events there are.
func TestEventsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/events.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) > 2 {
			if name := strings.Trim(cells[1], " `"); strings.Contains(name, ".") && !strings.ContainsAny(name, " *") {
				documented[name] = true
			}
		}
	}
	all := map[string]bool{}
	for _, typ := range constants(t, "Event") {
		all[typ] = true
	}
	if diff := cmp.Diff(all, documented); diff != "" {
		t.Errorf("events of internal/fleet (-) and of docs/reference/events.md (+):\n%s", diff)
	}
}

// The names of the existing wire are all there, letter by letter.
func TestPublicNamesAreKept(t *testing.T) {
	have := map[string]bool{}
	for _, typ := range constants(t, "Event") {
		have[typ] = true
	}
	for family, names := range map[string]string{
		"vm": "provisioning scheduled running provision_failed destroying removed recovered draining drained drain_failed drain_skipped " +
			"forked token_rotated idle_suspected health_changed orphan_dead_lettered",
		"task":     "assigned running completed failed stuck_suspected",
		"secrets":  "deployed recovered recovery_failed",
		"snapshot": "created restored deleted gc_deleted gc_failed",
		"artifact": "pulled gc_deleted gc_failed",
		"host":     "registered cordoned uncordoned removed",
		"auth":     "failed",
		"ip":       "rejected",
	} {
		for name := range strings.FieldsSeq(names) {
			if !have[family+"."+name] {
				t.Errorf("there is no %s.%s", family, name)
			}
		}
	}
}

// What nobody foresaw is still told without breaking.
func TestUnknownWordsAreTold(t *testing.T) {
	c := life(fleet.Reason{Actor: "robot", Rule: "some_new_rule"}, fleet.VMStateDestroyed)
	c.Events = append(c.Events, fleet.Event{Type: "vm.turned_round", At: noon.Add(time.Hour), Error: "why"})
	text := render(Explain(c))
	if !strings.Contains(text, "because of rule some new rule") || !strings.Contains(text, "vm turned round: why") {
		t.Error(text)
	}
	for _, raw := range []string{"", "{", "[]", "null", `{"count":"x"}`, `{"to":1}`} {
		for _, typ := range []string{fleet.EventVMScheduled, fleet.EventVMRunning, fleet.EventSecretsDeployed, fleet.EventVMHealthChanged, fleet.EventVMFailed} {
			if Sentence(&fleet.Event{Type: typ, Payload: json.RawMessage(raw)}) == "" {
				t.Errorf("%s with payload %q is not told", typ, raw)
			}
		}
	}
}
