package model_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestProjectNames(t *testing.T) {
	long := strings.Repeat("a", 39) + " b"
	for name, want := range map[string]string{
		"My cool Feature!": "my-cool-feature--p1", "": "playground--p1", "--": "playground--p1", "Ünï": "n--p1",
		"a--b": "a-b--p1", long: strings.Repeat("a", 39) + "--p1", "../../etc": "etc--p1", "x\ny": "x-y--p1",
	} {
		p, err := model.NewProject(name, "p1")
		if err != nil || p.String() != want || p.ID() != "p1" {
			t.Errorf("%q: %q, %v, want %q", name, p, err, want)
		}
	}
	for _, id := range []model.PlaygroundID{"", "P1", "a-b", "a/b", "..", model.PlaygroundID(strings.Repeat("a", 33))} {
		if _, err := model.NewProject("x", id); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("id %q: %v", id, err)
		}
	}
	for _, name := range []string{"", "shop", "shop--", "--p1", "a--b--c", "-a--p1", "a---p1", "Shop--p1", "a/b--p1", "shop--p1\n", strings.Repeat("a", 41) + "--p1"} {
		if p, err := model.ParseProject(name); err == nil {
			t.Errorf("%q is taken as %q", name, p)
		}
	}
}

func TestProjectRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := model.PlaygroundID(rapid.StringMatching(`[a-z0-9]{1,32}`).Draw(t, "id"))
		p, err := model.NewProject(rapid.String().Draw(t, "name"), id)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(p)
		var q model.Project
		if err != nil || json.Unmarshal(b, &q) != nil || q != p || q.ID() != id || q.IsZero() {
			t.Fatalf("%s: %s, %v", p, q, err)
		}
	})
}

func TestLayout(t *testing.T) {
	l, err := model.NewLayout(model.DefaultRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		place model.Place
		names []string
		want  string
	}{
		{model.PlaceRunner, []string{"abc"}, "/opt/fuse/bin/runner-abc"},
		{model.PlaceFenceLock, []string{"inst1"}, "/opt/fuse/fence/inst1/lock"},
		{model.PlaceFenceEpoch, []string{"inst1"}, "/opt/fuse/fence/inst1/epoch"},
		{model.PlaceOps, []string{"inst1"}, "/opt/fuse/ops/inst1"},
		{model.PlaceOp, []string{"inst1", "op1"}, "/opt/fuse/ops/inst1/op1"},
		{model.PlacePlaygrounds, nil, "/opt/fuse/playgrounds"},
		{model.PlacePlayground, []string{"shop--p1"}, "/opt/fuse/playgrounds/shop--p1"},
		{model.PlaceCompose, []string{"shop--p1"}, "/opt/fuse/playgrounds/shop--p1/compose.yml"},
		{model.PlaceMarker, []string{"shop--p1"}, "/opt/fuse/playgrounds/shop--p1/.fuse/owner.json"},
		{model.PlaceLock, []string{"shop--p1"}, "/opt/fuse/playgrounds/shop--p1/.fuse/lock"},
		{model.PlaceDockerConf, []string{"shop--p1"}, "/opt/fuse/playgrounds/shop--p1/docker-config"},
		{model.PlaceCheckouts, []string{"shop--p1"}, "/opt/fuse/playgrounds/shop--p1/props"},
		{model.PlaceAside, []string{"shop--p1", "op1"}, "/opt/fuse/aside/shop--p1/op1"},
	} {
		if got, err := l.Path(tt.place, tt.names...); got != tt.want || err != nil {
			t.Errorf("%s: %q, %v", tt.place, got, err)
		}
	}
	for _, root := range []string{"", "/", "/opt", "opt/fuse", "/opt/fuse/", "/opt/../etc", "/opt//x", "/opt/a b", "/opt/$x", "/opt/.hidden"} {
		if _, err := model.NewLayout(root); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("root %q: %v", root, err)
		}
	}
	if _, err := (model.Layout{}).Path(model.PlacePlaygrounds); err == nil {
		t.Error("a layout without a root has paths")
	}
	if _, err := l.Path("attic"); err == nil {
		t.Error("an unknown place has a path")
	}
	if _, err := l.Path(model.PlaceOp, "inst1"); err == nil {
		t.Error("a name is missing, and there is a path")
	}
}

// TestLayoutContained holds that no names whatsoever lead out of the root.
func TestLayoutContained(t *testing.T) {
	l, err := model.NewLayout("/srv/fuse")
	if err != nil {
		t.Fatal(err)
	}
	evil := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{".", "..", "../..", "a/b", "/etc", "", "-rf", "a\x00b", "$(id)", "a b", "~"}))
	rapid.Check(t, func(t *rapid.T) {
		place := rapid.SampledFrom([]model.Place{model.PlaceOp, model.PlaceCompose, model.PlaceRunner, model.PlaceAside}).Draw(t, "place")
		path, err := l.Path(place, rapid.SliceOfN(evil, 0, 3).Draw(t, "names")...)
		if err == nil && (!l.Contains(path) || strings.ContainsAny(path, " $~\x00\n") || strings.Contains(path, "/-")) {
			t.Fatalf("%q", path)
		}
	})
	for _, path := range []string{"/srv/fuse", "/srv/fuse2/x", "/srv/fuse/../etc", "/etc", "srv/fuse/x", ""} {
		if l.Contains(path) {
			t.Errorf("%q is below the root", path)
		}
	}
}

func TestMarker(t *testing.T) {
	shop, _ := model.NewProject("shop", "p1")
	m := model.Marker{Kind: model.KindPlayground, Installation: "inst1", Marquee: "m1", Playground: "p1", Project: shop, Epoch: 3, CreatedAt: noon}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := model.ParseMarker(b)
	if diff := cmp.Diff(m, got, cmp.Comparer(func(a, b model.Project) bool { return a == b })); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
	for i := range len(b) - 1 { // the last byte is a newline
		if _, err := model.ParseMarker(b[:i]); err == nil && i < len(b)-1 {
			t.Fatalf("half a marker (%d of %d bytes) is taken", i, len(b))
		}
	}
	for _, text := range []string{string(b) + string(b), "null", `{"kind":"playground"}`, strings.Repeat(" ", 5000)} {
		if _, err := model.ParseMarker([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if got, err := model.ParseMarker([]byte(string(b[:len(b)-3]) + `,"of_later":1}`)); err != nil || got.Playground != "p1" {
		t.Errorf("what a later version adds is not passed over: %+v %v", got, err)
	}
	other, _ := model.NewProject("other", "p1")
	if !m.Owns("inst1", "p1", shop) || m.Owns("inst2", "p1", shop) || m.Owns("inst1", "p2", shop) || m.Owns("inst1", "p1", other) || m.Owns("inst1", "p1", model.Project{}) {
		t.Error("a marker owns exactly one directory of one playground of one installation")
	}
	m.Kind = "agent"
	if m.Owns("inst1", "p1", shop) {
		t.Error("another kind is no playground")
	}
}

// TestTransitions draws the table of intent and the table of evidence.
func TestTransitions(t *testing.T) {
	want := map[model.State]string{
		"":                    "pending",
		model.StatePending:    "in_progress completed stopping destroying; seen: running; fails",
		model.StateInProgress: "pending running error stopping destroying; seen: pending running; fails",
		model.StateRunning:    "pending error has_changes completed stopping destroying; seen: stopped; fails",
		model.StateError:      "pending completed stopping destroying; seen: running",
		model.StateHasChanges: "pending running stopping destroying",
		model.StateCompleted:  "destroying",
		model.StateStopping:   "stopped destroying; fails",
		model.StateStopped:    "pending destroying; seen: running",
		model.StateDestroying: "gone",
	}
	got := map[model.State]string{}
	for from := range want {
		var edges, seen []string
		for _, to := range append(model.States(), "") {
			name := string(to)
			if to == "" {
				name = "gone"
			}
			if model.CanTransition(from, to) {
				edges = append(edges, name)
			}
			if model.CanObserve(from, to) {
				seen = append(seen, name)
			}
		}
		text := strings.Join(edges, " ")
		if len(seen) > 0 {
			text += "; seen: " + strings.Join(seen, " ")
		}
		if model.CanFail(from) {
			text += "; fails"
		}
		got[from] = text
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRequest asks for every action in every state: what is allowed takes a
// declared edge, what is not changes nothing.
func TestRequest(t *testing.T) {
	for _, state := range model.States() {
		for _, a := range model.Actions() {
			p := model.Playground{ID: "p1", State: state, Intent: model.IntentUp, Strikes: model.Strikes{Count: 1}, Repairs: model.Tries{noon}, Attention: "x"}
			q, err := p.Request(a, noon)
			if !state.Allows(a) {
				if fleet.CodeOf(err) != fleet.CodeConflict || cmp.Diff(p, q, cmp.Comparer(func(a, b model.Project) bool { return a == b })) != "" {
					t.Errorf("%s while %s: %v", a, state, err)
				}
				continue
			}
			if err != nil || !model.CanTransition(state, q.State) || q.Strikes.Count != 0 || len(q.Repairs) != 0 || q.Attention != "" || !q.IntentSince.Equal(noon) {
				t.Errorf("%s while %s: %+v, %v", a, state, q, err)
			}
			wantOwed := model.Action("")
			if q.State == model.StatePending {
				wantOwed = a
			}
			if q.Owed != wantOwed {
				t.Errorf("%s while %s owes %q", a, state, q.Owed)
			}
			if wantIntent := map[model.Action]model.Intent{model.ActionStop: model.IntentStopped, model.ActionDestroy: model.IntentGone}[a]; wantIntent != "" && q.Intent != wantIntent {
				t.Errorf("%s leaves intent %q", a, q.Intent)
			}
		}
	}
	if _, err := (model.Playground{}).Request("explode", noon); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Error(err)
	}
	trick := model.Playground{State: model.StateRunning, Intent: model.IntentJob}
	if q, err := trick.Request(model.ActionRollout, noon); err != nil || q.Intent != model.IntentJob {
		t.Error("a trick stays a trick:", q.Intent, err)
	}
}

func TestClassify(t *testing.T) {
	tests := []struct {
		name    string
		symptom model.Symptom
		class   model.Class
		cat     model.Category
	}{
		{"clone without a route is the network's fault", model.Symptom{Status: 128, Step: model.StepClone, Stderr: "fatal: unable to access: Could not resolve host: git"}, model.ClassTransient, model.CategoryNetwork},
		{"clone refused", model.Symptom{Status: 128, Step: model.StepClone, Stderr: "fatal: repository not found"}, model.ClassUser, model.CategoryCloneFailed},
		{"build on a full disk", model.Symptom{Status: 1, Step: model.StepBuild, Stderr: "write /x: no space left on device"}, model.ClassHostResource, model.CategoryDiskFull},
		{"full disk that timed out", model.Symptom{Status: 124, Step: model.StepUp, Stderr: "no space left on device"}, model.ClassHostResource, model.CategoryDiskFull},
		{"build", model.Symptom{Status: 1, Step: model.StepBuild, Stderr: "make: *** [all] Error 2"}, model.ClassUser, model.CategoryBuildFailed},
		{"up timed out", model.Symptom{Status: 124, Step: model.StepUp}, model.ClassRecoverable, model.CategoryTimeout},
		{"health gate", model.Symptom{Step: model.StepHealth}, model.ClassRecoverable, model.CategoryTimeout},
		{"our deadline", model.Symptom{Cause: model.CauseTimeout, Step: model.StepPull}, model.ClassRecoverable, model.CategoryTimeout},
		{"link lost outranks text", model.Symptom{Cause: model.CauseLinkLost, Step: model.StepUp, Stderr: "yaml: bad"}, model.ClassTransient, model.CategoryNetwork},
		{"worker ended", model.Symptom{Cause: model.CauseInterrupted}, model.ClassTransient, model.CategoryInterrupted},
		{"one-shot", model.Symptom{Cause: model.CauseOneShot}, model.ClassRecoverable, model.CategoryOneShot},
		{"terminated", model.Symptom{Status: 143, Step: model.StepUp}, model.ClassTransient, model.CategoryInterrupted},
		{"conflict", model.Symptom{Status: 1, Step: model.StepUp, Stderr: `Conflict. The container name "/a" is already in use by container "b"`}, model.ClassRecoverable, model.CategoryConflict},
		{"port", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "Bind for 0.0.0.0:80 failed: port is already allocated"}, model.ClassUser, model.CategoryPortBind},
		{"daemon", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "Cannot connect to the Docker daemon"}, model.ClassTransient, model.CategoryDaemon},
		{"socket", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "permission denied while trying to connect to the Docker daemon socket"}, model.ClassTransient, model.CategoryPermission},
		{"rate limit", model.Symptom{Status: 1, Step: model.StepPull, Stderr: "toomanyrequests: You have reached your pull rate limit"}, model.ClassTransient, model.CategoryRateLimited},
		{"image missing", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "manifest unknown"}, model.ClassUser, model.CategoryImagePull},
		{"pull", model.Symptom{Status: 1, Step: model.StepPull, Stderr: "what"}, model.ClassUser, model.CategoryImagePull},
		{"mount", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "invalid mount config for type \"bind\""}, model.ClassUser, model.CategoryVolumeMount},
		{"placeholder", model.Symptom{Status: 1, Step: model.StepRender, Stderr: "required variable X is missing a value"}, model.ClassUser, model.CategoryPlaceholder},
		{"compose file", model.Symptom{Status: 15, Step: model.StepUp, Stderr: "validating compose.yml: services.x Additional property y is not allowed"}, model.ClassUser, model.CategoryInvalid},
		{"dependency", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "dependency failed to start: container db is unhealthy"}, model.ClassUser, model.CategoryUnhealthy},
		{"service", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "service \"x\" didn't complete successfully: exit 1"}, model.ClassUser, model.CategoryServiceExit},
		{"up", model.Symptom{Status: 1, Step: model.StepUp, Stderr: "strange"}, model.ClassUser, model.CategoryComposeFailed},
		{"nothing said", model.Symptom{Status: 1, Step: model.StepUp}, model.ClassUnknown, model.CategoryUnknown},
		{"step without a meaning", model.Symptom{Status: 1, Step: model.StepDown, Stderr: "strange"}, model.ClassUnknown, model.CategoryUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := model.Classify(tt.symptom)
			if f.Class != tt.class || f.Category != tt.cat || f.Step != tt.symptom.Step {
				t.Errorf("%s, %s", f.Class, f.Category)
			}
			if f.Temporary() != (tt.class == model.ClassTransient || tt.class == model.ClassRecoverable) || f.IsZero() {
				t.Error("temporary:", f.Temporary())
			}
		})
	}
	if long := model.Classify(model.Symptom{Stderr: strings.Repeat("ä", 400) + "\nsecond"}).Text; len(long) > 310 || strings.Contains(long, "second") {
		t.Error("text is not cut:", len(long))
	}
}

func TestStrikes(t *testing.T) {
	add := func(s model.Strikes, kind string, after time.Duration) model.Strikes {
		return s.Add(kind, noon.Add(after), 20*time.Second, 30*time.Minute)
	}
	one := add(model.Strikes{}, "absent", 0)
	for _, tt := range []struct {
		name  string
		kind  string
		after time.Duration
		count int
	}{
		{"too soon", "absent", 19 * time.Second, 1}, {"soon enough", "absent", 20 * time.Second, 2},
		{"another kind", "at rest", time.Minute, 1}, {"too old", "absent", 31 * time.Minute, 1}, {"a clock stepped back", "absent", -time.Minute, 1},
	} {
		if got := add(one, tt.kind, tt.after); got.Count != tt.count {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	two := add(one, "absent", time.Minute)
	if !two.Since.Equal(noon) || !two.Equal(two) || two.Equal(one) {
		t.Errorf("%+v", two)
	}
}

func TestTries(t *testing.T) {
	var tries model.Tries
	if !tries.Last().IsZero() {
		t.Error("no try was the last")
	}
	for i := range 40 {
		tries = tries.Add(noon.Add(time.Duration(i) * time.Minute))
	}
	if len(tries) != 16 || tries.Within(noon.Add(40*time.Minute), 5*time.Minute) != 4 || !tries.Last().Equal(noon.Add(39*time.Minute)) {
		t.Error(len(tries), tries.Within(noon.Add(40*time.Minute), 5*time.Minute), tries.Last())
	}
	if tries.Within(noon.Add(-time.Hour), time.Hour) != 16 {
		t.Error("a clock that stepped back refills a budget")
	}
}

func TestStreakAndIdentity(t *testing.T) {
	var s model.Streak
	for i := range 4 {
		s = s.Miss(noon.Add(time.Duration(i)*time.Minute), 30*time.Minute)
	}
	if s.Count != 4 || s.Miss(noon.Add(time.Hour), 30*time.Minute).Count != 1 {
		t.Error(s)
	}
	pin := model.Identity{Installation: "i", MachineID: "m", DaemonID: "d", DataRoot: "r", Witness: "w"}
	if pin.Differs(pin) != "" || (model.Identity{}).Differs(model.Identity{}) == "" {
		t.Error("equal is equal, and nothing equals an empty pin")
	}
	for want, change := range map[string]func(*model.Identity){
		"installation id": func(i *model.Identity) { i.Installation = "x" }, "machine id": func(i *model.Identity) { i.MachineID = "" },
		"daemon id": func(i *model.Identity) { i.DaemonID = "x" }, "data root": func(i *model.Identity) { i.DataRoot = "x" },
		"witness volume": func(i *model.Identity) { i.Witness = "x" },
	} {
		read := pin
		change(&read)
		if got := pin.Differs(read); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPolicy(t *testing.T) {
	p := model.DefaultPolicy()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*model.Policy){
		"Period": func(p *model.Policy) { p.Period = 0 }, "StrikesNeeded": func(p *model.Policy) { p.StrikesNeeded = 1 },
		"StrikeGap": func(p *model.Policy) { p.StrikeGap = 0 }, "StrikeMemory": func(p *model.Policy) { p.StrikeMemory = time.Second },
		"Misses": func(p *model.Policy) { p.MissesToQuarantine = 1 }, "Probe": func(p *model.Policy) { p.ProbeMax = 0 },
		"budget": func(p *model.Policy) { p.RolloutsPerPass = -1 }, "Tries": func(p *model.Policy) { p.RepairTries = 16 },
		"Requeue": func(p *model.Policy) { p.RequeueMin = 0 }, "Stale": func(p *model.Policy) { p.StaleFast = 0 },
		"LeaseRenew": func(p *model.Policy) { p.LeaseRenew = p.LeaseTTL }, "Look": func(p *model.Policy) { p.LookHostTimeout = p.LookTimeout },
		"Sessions": func(p *model.Policy) { p.Sessions = 11 },
	} {
		q := p
		change(&q)
		if err := q.Validate(); fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var waits []string
	m := model.Marquee{Reach: model.ReachQuarantined}
	for m.Streak.Count = 5; m.Streak.Count < 10; m.Streak.Count++ {
		waits = append(waits, p.NextLook(m).String())
	}
	if got := fmt.Sprint(waits); got != "[5m0s 10m0s 20m0s 30m0s 30m0s]" || p.NextLook(model.Marquee{}) != time.Minute {
		t.Error(got)
	}
	seen := map[time.Duration]bool{}
	for i := range 100 {
		o := model.MarqueeID(fmt.Sprint("m", i)).Offset(p.Period)
		if o < 0 || o >= p.Period {
			t.Fatal(o)
		}
		seen[o.Truncate(6*time.Second)] = true
	}
	if len(seen) < 8 || model.MarqueeID("m").Offset(0) != 0 {
		t.Error("marquees are not spread over the period:", len(seen))
	}
}
