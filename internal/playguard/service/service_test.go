package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// maxStored is what an owner's definitions may take here.
const maxStored = 64 << 10

// desk is the service on a store, with a loop that does not run: what is asked
// for stays pending.
type desk struct {
	*service.Service
	t      *testing.T
	store  *state.Store
	sealer *meeting
}

// meeting is a sealer before which several may have to meet.
type meeting struct {
	*secrets.Sealer
	all *sync.WaitGroup // nil: nobody waits
}

func (m *meeting) Seal(kind, id string, plain []byte) ([]byte, error) {
	if m.all != nil {
		m.all.Done()
		m.all.Wait()
	}
	return m.Sealer.Seal(kind, id, plain)
}

func newDesk(t *testing.T, marquees ...string) *desk {
	t.Helper()
	store, keeper := storetest.OpenSealed(t)
	sealer, policy, inst := &meeting{Sealer: keeper}, model.DefaultPolicy(), records.Installation(store.FleetID())
	hosts := &reach.Hosts{Pool: sshx.NewPool(sshx.Timeouts{Dial: time.Minute, Handshake: time.Minute, Session: time.Minute}), Sealer: sealer, Installation: inst}
	log := slog.New(slog.DiscardHandler)
	l := loop.New(loop.Config{Store: store, Policy: policy, Logger: log, Host: func(m records.Marquee) work.Host { return hosts.Host(m) },
		Worker: work.New(work.Config{Store: store, Sealer: sealer, Installation: inst, Policy: policy, Logger: log, Lease: func() (time.Duration, error) { return time.Hour, nil }})})
	svc, err := service.New(service.Config{Store: store, Sealer: sealer, Loop: l, Hosts: hosts, Installation: inst, Policy: policy, Logger: log, MaxStored: maxStored})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hosts.Pool.Close)
	d := &desk{svc, t, store, sealer}
	for _, name := range marquees {
		d.update(func(tx *state.Tx) error {
			return records.PutMarquee(tx, records.Marquee{Name: name, Marquee: model.Marquee{
				ID: model.MarqueeID("id" + name), Address: name + ":22", Root: "/opt/fuse", Admin: model.AdminActive, Reach: model.ReachOK,
			}})
		})
	}
	return d
}

func (d *desk) update(fn func(tx *state.Tx) error) {
	d.t.Helper()
	if _, err := d.store.Update(context.Background(), fn); err != nil {
		d.t.Fatal(err)
	}
}

// set puts a playground into a state, as the loop would.
func (d *desk) set(id model.PlaygroundID, s model.State) {
	d.t.Helper()
	d.update(func(tx *state.Tx) error {
		row, _ := records.Playgrounds.Get(tx, string(id))
		p := *row
		p.State, p.Owed = s, ""
		if s == model.StateRunning {
			p.Applied = p.Desired
		}
		return records.PutPlayground(tx, p)
	})
}

// as is a context of somebody with a role.
func as(t *testing.T, name string, role fleet.Role) context.Context {
	t.Helper()
	return auth.With(t.Context(), auth.Principal{Name: name, Role: role})
}

func files(image string, more ...string) []service.File {
	out := []service.File{{Path: "compose.yaml", Data: []byte("services:\n  web:\n    image: " + image + "\n    environment: {PASSWORD: '${PASSWORD:-none}'}\n")}}
	for i := 0; i+1 < len(more); i += 2 {
		out = append(out, service.File{Path: more[i], Data: []byte(more[i+1])})
	}
	return out
}

func wants(t *testing.T, err error, code fleet.Code, text string) {
	t.Helper()
	if fleet.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %s with %q", err, code, text)
	}
}

func TestEachSeesItsOwn(t *testing.T) {
	d := newDesk(t, "box")
	ann, bob, admin := as(t, "ann", fleet.RoleUser), as(t, "bob", fleet.RoleUser), as(t, "root", fleet.RoleAdmin)
	for _, ctx := range []context.Context{ann, bob} {
		if _, err := d.Up(ctx, service.UpRequest{Name: "shop", Files: files("a")}); err != nil {
			t.Fatal(err)
		}
	}
	mine, err := d.Playground(ann, "shop")
	if err != nil || mine.Owner != "ann" || mine.State != model.StatePending {
		t.Fatalf("%+v %v", mine, err)
	}
	for what, call := range map[string]func(ctx context.Context) error{
		"get":     func(ctx context.Context) error { _, err := d.Playground(ctx, string(mine.ID)); return err },
		"explain": func(ctx context.Context) error { _, err := d.Explain(ctx, string(mine.ID)); return err },
		"forget":  func(ctx context.Context) error { return d.Forget(ctx, string(mine.ID)) },
		"act": func(ctx context.Context) error {
			_, err := d.Act(ctx, string(mine.ID), service.ActionRequest{Action: model.ActionStop})
			return err
		},
		"logs": func(ctx context.Context) error { return d.Logs(ctx, string(mine.ID), service.LogsRequest{}, nil) },
		"exec": func(ctx context.Context) error {
			_, err := d.Exec(ctx, string(mine.ID), service.ExecRequest{Service: "web", Command: []string{"true"}})
			return err
		},
	} {
		if err := call(bob); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("%s of another's playground: %v", what, err)
		}
	}
	list, err := d.Playgrounds(bob, service.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Owner != "bob" {
		t.Errorf("bob sees %+v %v", list, err)
	}
	if all, err := d.Playgrounds(admin, service.ListOptions{}); err != nil || len(all.Items) != 2 {
		t.Errorf("an admin sees %d: %v", len(all.Items), err)
	}
	_, err = d.Playground(admin, "shop")
	wants(t, err, fleet.CodeConflict, "2 playgrounds")
}

func TestPages(t *testing.T) {
	d := newDesk(t, "box")
	for i := range 7 {
		if _, err := d.Up(t.Context(), service.UpRequest{Name: fmt.Sprint("p", i), Files: files("a")}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for after := ""; ; {
		page, err := d.Playgrounds(t.Context(), service.ListOptions{Marquee: "box", Limit: 3, After: after})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.Items {
			names = append(names, p.Name)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "p0 p1 p2 p3 p4 p5 p6" {
		t.Errorf("pages show %s", got)
	}
}

// A plan is what an Up then does, as long as nothing changed.
func TestPlans(t *testing.T) {
	d := newDesk(t, "box")
	req := service.UpRequest{Name: "shop", Files: files("a")}
	plan, err := d.Plan(t.Context(), req)
	if err != nil || !plan.New || len(plan.Changes) != 1 || plan.Changes[0].Does != "create" {
		t.Fatalf("%+v %v", plan, err)
	}
	if list, _ := d.Playgrounds(t.Context(), service.ListOptions{}); len(list.Items) != 0 {
		t.Error("a plan made something")
	}
	req.Plan = plan.Token
	p, err := d.Up(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Up(t.Context(), req)
	wants(t, err, fleet.CodeConflict, "plan")
	req.Plan = ""
	_, err = d.Up(t.Context(), req)
	wants(t, err, fleet.CodeConflict, "it is pending")
	d.set(p.ID, model.StateRunning)
	again, err := d.Up(t.Context(), req)
	if err != nil || again.State != model.StateRunning {
		t.Errorf("an Up that changes nothing: %+v %v", again, err)
	}
	req.Files = files("b")
	plan, err = d.Plan(t.Context(), req)
	if err != nil || plan.New || len(plan.Changes) != 1 || plan.Changes[0].Does != "replace" {
		t.Errorf("%+v %v", plan, err)
	}
	changed, err := d.Up(t.Context(), req)
	if err != nil || changed.State != model.StatePending || changed.ID != p.ID || changed.Desired == p.Desired || changed.Applied != p.Desired {
		t.Errorf("%+v %v", changed, err)
	}
}

// Plan and explain tell that a service is rolled, and a mark that cannot be kept
// is refused before anything is done.
func TestZeroDowntime(t *testing.T) {
	d := newDesk(t, "box")
	marked := func(image, more string) service.UpRequest {
		file := "services:\n  web:\n    image: " + image + "\n    x-fuse: {zero_downtime: true}\n" + more
		return service.UpRequest{Name: "shop", Files: []service.File{{Path: "compose.yml", Data: []byte(file)}}}
	}
	_, err := d.Plan(t.Context(), marked("a", "    ports: ['80:80']\n"))
	wants(t, err, fleet.CodeInvalidArgument, "compose.yml:5:5: service web is marked zero_downtime and cannot run twice: it publishes ports")
	p, err := d.Up(t.Context(), marked("a", ""))
	if err != nil || len(p.Services) != 1 || !p.Services[0].Rolled {
		t.Fatalf("%+v %v", p, err)
	}
	d.set(p.ID, model.StateRunning)
	plan, err := d.Plan(t.Context(), marked("b", ""))
	if err != nil || len(plan.Changes) != 1 || plan.Changes[0].Detail != "b; the old one serves until the new one is up" {
		t.Errorf("%+v %v", plan, err)
	}
	e, err := d.Explain(t.Context(), "shop")
	if err != nil || !slices.ContainsFunc(e.Next, func(s string) bool { return strings.HasPrefix(s, "Marked zero_downtime: web.") }) {
		t.Errorf("%q %v", e.Next, err)
	}
}

// Explain tells of the end of a playground's time, and what holds it up.
func TestExplainTheEnd(t *testing.T) {
	d := newDesk(t, "box")
	p, err := d.Up(t.Context(), service.UpRequest{Name: "shop", Files: files("a"), Expires: "1h"})
	if err != nil {
		t.Fatal(err)
	}
	for state, want := range map[model.State]string{
		model.StateRunning: "It ends in ", model.StateHasChanges: "Its time is over, and it waits for the work", model.StateStopped: "",
	} {
		d.set(p.ID, state)
		e, err := d.Explain(t.Context(), "shop")
		tells := func(text string) bool {
			return slices.ContainsFunc(e.Next, func(s string) bool { return strings.HasPrefix(s, text) })
		}
		if err != nil || want != "" && !tells(want) || want == "" && tells("It") && !tells("It stays stopped") {
			t.Errorf("%s: %q %v", state, e.Next, err)
		}
	}
}

// What an Up asks for follows from the state.
func TestUpByState(t *testing.T) {
	d := newDesk(t, "box")
	req := service.UpRequest{Name: "shop", Files: files("a")}
	p, err := d.Up(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for state, want := range map[model.State]model.Action{
		model.StateStopped: model.ActionStart, model.StateError: model.ActionRollout, model.StateHasChanges: model.ActionRollout,
	} {
		d.set(p.ID, state)
		if _, err := d.Up(t.Context(), req); err != nil {
			t.Fatalf("%s: %v", state, err)
		}
		_ = d.store.View(func(tx *state2) error {
			if row, _ := records.Playgrounds.Get(tx, string(p.ID)); row.Owed != want || row.State != model.StatePending {
				t.Errorf("after an Up from %s it owes %q, want %q", state, row.Owed, want)
			}
			return nil
		})
	}
	for _, s := range []model.State{model.StateInProgress, model.StateStopping, model.StateDestroying} {
		d.set(p.ID, s)
		_, err := d.Up(t.Context(), req)
		wants(t, err, fleet.CodeConflict, string(s))
	}
}

type state2 = state.ReadTx

func TestBadDirectories(t *testing.T) {
	d := newDesk(t, "box", "other")
	for name, c := range map[string]struct {
		req  service.UpRequest
		code fleet.Code
		text string
	}{
		"no compose file":   {service.UpRequest{Name: "x", Marquee: "box", Files: []service.File{{Path: "README"}}}, fleet.CodeInvalidArgument, "compose.yaml"},
		"a way out":         {service.UpRequest{Name: "x", Marquee: "box", Files: files("a", "../x", "")}, fleet.CodeInvalidArgument, "../x"},
		"absolute":          {service.UpRequest{Name: "x", Marquee: "box", Files: files("a", "/etc/x", "")}, fleet.CodeInvalidArgument, "/etc/x"},
		"our own":           {service.UpRequest{Name: "x", Marquee: "box", Files: files("a", ".fuse/owner.json", "")}, fleet.CodeInvalidArgument, ".fuse"},
		"a line break":      {service.UpRequest{Name: "x", Marquee: "box", Files: files("a", "a\nb", "")}, fleet.CodeInvalidArgument, "path"},
		"no name":           {service.UpRequest{Marquee: "box", Files: files("a")}, fleet.CodeInvalidArgument, "name"},
		"which marquee":     {service.UpRequest{Name: "x", Files: files("a")}, fleet.CodeInvalidArgument, "marquee"},
		"no marquee":        {service.UpRequest{Name: "x", Marquee: "none", Files: files("a")}, fleet.CodeNotFound, "none"},
		"too large":         {service.UpRequest{Name: "x", Marquee: "box", Files: files("a", "big", strings.Repeat("x", service.MaxFileBytes+1))}, fleet.CodePayloadTooLarge, "big"},
		"unknown key":       {service.UpRequest{Name: "x", Marquee: "box", Files: files("a\n    bogus: 1")}, fleet.CodeInvalidArgument, "compose.yaml:4"},
		"privileged":        {service.UpRequest{Name: "x", Marquee: "box", Files: files("a\n    privileged: true")}, fleet.CodeInvalidArgument, "privileged"},
		"unreadable .env":   {service.UpRequest{Name: "x", Marquee: "box", Files: files("a", ".env", "SECRET='unclosed")}, fleet.CodeInvalidArgument, ".env"},
		"a looser policy":   {service.UpRequest{Name: "x", Marquee: "box", Files: files("a\n    privileged: true"), Policy: compose.Policy{compose.DangerPrivileged: compose.Allow}}, fleet.CodeInvalidArgument, "privileged"},
		"a policy of words": {service.UpRequest{Name: "x", Marquee: "box", Files: files("a"), Policy: compose.Policy{"nonsense": compose.Allow}}, fleet.CodeInvalidArgument, "nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := d.Plan(t.Context(), c.req)
			wants(t, err, c.code, c.text)
			if err != nil && strings.Contains(err.Error(), "unclosed") {
				t.Errorf("the error tells a value: %v", err)
			}
		})
	}
}

// A marquee's policy lets pass what it names, and warns.
func TestPolicies(t *testing.T) {
	d := newDesk(t, "box")
	req := service.UpRequest{Name: "x", Files: files("a\n    privileged: true")}
	if _, err := d.SetPolicy(t.Context(), "box", map[string]string{"privileged": "warn"}); err != nil {
		t.Fatal(err)
	}
	if plan, err := d.Plan(t.Context(), req); err != nil || len(plan.Warnings) != 1 {
		t.Errorf("%+v %v", plan, err)
	}
	req.Policy = compose.Policy{compose.DangerPrivileged: compose.Refuse}
	_, err := d.Plan(t.Context(), req)
	wants(t, err, fleet.CodeInvalidArgument, "privileged")
	_, err = d.SetPolicy(t.Context(), "box", map[string]string{"privileged": "perhaps"})
	wants(t, err, fleet.CodeInvalidArgument, "perhaps")
}

// Values of variables are stored sealed, and shown nowhere.
func TestSecretsStaySealed(t *testing.T) {
	const secret = "hunter2-hunter2"
	d := newDesk(t, "box")
	p, err := d.Up(t.Context(), service.UpRequest{Name: "shop", Files: files("a", ".env", "PASSWORD="+secret), Variables: map[string]string{"OTHER": secret}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Explain(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%+v %+v", p, e)
	list, err := d.store.Events(t.Context(), state.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	told, _ := json.Marshal(list)
	stored := ""
	_ = d.store.View(func(tx *state.ReadTx) error {
		for id, doc := range records.Entries.All(tx) {
			raw, _ := json.Marshal(doc)
			stored += id + string(raw)
		}
		for id, doc := range records.Playgrounds.All(tx) {
			raw, _ := json.Marshal(doc)
			stored += id + string(raw)
		}
		v, err := records.OpenVersion(tx, d.sealer, p.ID, p.Desired)
		if err != nil || !strings.Contains(string(v.Compose), secret) {
			t.Errorf("the definition does not have the value of its variable: %s %v", v.Compose, err)
		}
		return nil
	})
	for what, text := range map[string]string{"what is shown": shown, "events": string(told), "records": stored} {
		if strings.Contains(text, secret) {
			t.Errorf("%s have the secret: %s", what, text)
		}
	}
}

// A marquee with playgrounds stays, unless their records may go too.
func TestRemoveMarquee(t *testing.T) {
	d := newDesk(t, "box")
	p, err := d.Up(t.Context(), service.UpRequest{Name: "shop", Files: files("a")})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, d.RemoveMarquee(t.Context(), "box", false), fleet.CodeConflict, "1 playgrounds")
	if err := d.RemoveMarquee(t.Context(), "box", true); err != nil {
		t.Fatal(err)
	}
	_, err = d.Playground(t.Context(), string(p.ID))
	wants(t, err, fleet.CodeNotFound, string(p.ID))
	_ = d.store.View(func(tx *state.ReadTx) error {
		if n := records.Entries.Len(tx); n != 0 {
			t.Errorf("%d documents are left", n)
		}
		return nil
	})
}

// What a person quarantined takes nothing on and waits.
func TestQuarantineByAPerson(t *testing.T) {
	d := newDesk(t, "box")
	if m, err := d.QuarantineMarquee(t.Context(), "box", "moving house"); err != nil || m.Admin != model.AdminDisabled || m.AdminWhy != "moving house" {
		t.Fatalf("%+v %v", m, err)
	}
	_, err := d.Up(t.Context(), service.UpRequest{Name: "shop", Files: files("a")})
	wants(t, err, fleet.CodeConflict, "moving house")
	_, err = d.CheckMarquee(t.Context(), "box")
	wants(t, err, fleet.CodeConflict, "quarantined")
	if m, err := d.ReturnMarquee(t.Context(), "box", service.ReturnMarquee{}); err != nil || m.Admin != model.AdminActive || m.AdminWhy != "" {
		t.Errorf("%+v %v", m, err)
	}
	if _, err := d.Up(t.Context(), service.UpRequest{Name: "shop", Files: files("a")}); err != nil {
		t.Error(err)
	}
}

func TestBadMarquees(t *testing.T) {
	d := newDesk(t, "box")
	none, key := []byte("no key at all"), sshdtest.NewKey(t)
	for name, c := range map[string]struct {
		req  service.NewMarquee
		text string
	}{
		"no name":    {service.NewMarquee{Hop: service.Hop{Address: "h", User: "u"}, Key: key}, "name"},
		"no key":     {service.NewMarquee{Name: "a", Hop: service.Hop{Address: "h", User: "u"}}, "key"},
		"no user":    {service.NewMarquee{Name: "a", Hop: service.Hop{Address: "h"}, Key: key}, "user"},
		"no address": {service.NewMarquee{Name: "a", Hop: service.Hop{User: "u"}, Key: key}, "address"},
		"bad port":   {service.NewMarquee{Name: "a", Hop: service.Hop{Address: "h:0", User: "u"}, Key: key}, "address"},
		"bad root":   {service.NewMarquee{Name: "a", Hop: service.Hop{Address: "h", User: "u"}, Key: key, Root: "/etc"}, "root"},
		"agent":      {service.NewMarquee{Name: "a", Hop: service.Hop{Address: "h", User: "u"}, Agent: "sock"}, "agent"},
		"jumps":      {service.NewMarquee{Name: "a", Hop: service.Hop{Address: "h", User: "u"}, Key: key, Jumps: make([]service.Hop, 4)}, "jumps"},
		"key":        {service.NewMarquee{Name: "a", Hop: service.Hop{Address: "127.0.0.1:1", User: "u"}, Key: none}, "key"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := d.AddMarquee(t.Context(), c.req)
			if err == nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "no key at all") {
				t.Errorf("error %v, want one with %q", err, c.text)
			}
		})
	}
	_, err := d.AddMarquee(t.Context(), service.NewMarquee{Name: "box", Hop: service.Hop{Address: "h", User: "u"}, Key: sshdtest.NewKey(t)})
	wants(t, err, fleet.CodeConflict, "registered already")
}

// A host that can be logged in on and has no Docker is refused with what to do
// about it.
func TestMarqueeWithoutDocker(t *testing.T) {
	d := newDesk(t, "box")
	s := sshdtest.Start(t, sshdtest.Options{Config: []string{"SetEnv DOCKER_HOST=unix:///nowhere/docker.sock"}})
	_, err := d.AddMarquee(t.Context(), service.NewMarquee{
		Name: "bare", Hop: service.Hop{Address: s.Address, User: s.User, HostKey: s.HostKey}, Key: s.Key, Root: filepath.Join(t.TempDir(), "fuse"),
	})
	var refused *fleet.Error
	if !errors.As(err, &refused) || refused.Details[fleet.DetailReason] != string(observe.ReasonDaemon) || !strings.Contains(refused.Details[fleet.DetailRemedy], "start the Docker daemon") {
		t.Errorf("%v, want the reason daemon and what to do", err)
	}
}

// Who once said that volumes are to be kept does not lose them by an Up that
// does not say it again.
func TestKeptVolumesStayKept(t *testing.T) {
	d := newDesk(t, "box")
	req := service.UpRequest{Name: "shop", Files: files("a"), KeepVolumes: true}
	p, err := d.Up(t.Context(), req)
	if err != nil || !p.KeepVolumes {
		t.Fatalf("%+v %v", p, err)
	}
	d.set(p.ID, model.StateRunning)
	req.KeepVolumes, req.Files = false, files("b")
	if p, err = d.Up(t.Context(), req); err != nil || !p.KeepVolumes {
		t.Errorf("after an Up: %+v %v", p, err)
	}
	no := false
	_, err = d.Act(t.Context(), "shop", service.ActionRequest{Action: model.ActionStop, KeepVolumes: &no})
	wants(t, err, fleet.CodeInvalidArgument, "keep_volumes")
	if p, err = d.Act(t.Context(), "shop", service.ActionRequest{Action: model.ActionDestroy, KeepVolumes: &no}); err != nil || p.KeepVolumes {
		t.Errorf("after a destroy that says so: %+v %v", p, err)
	}
}

// One owner's definitions do not fill the server's memory.
func TestDefinitionsAreBounded(t *testing.T) {
	d := newDesk(t, "box")
	ann := as(t, "ann", fleet.RoleUser)
	mounts := func(image string) []service.File {
		return files(image+"\n    volumes: ['./big:/big:ro']", "big", strings.Repeat("x", 10<<10))
	}
	var err error
	n := 0
	for ; n < 10 && err == nil; n++ {
		_, err = d.Up(ann, service.UpRequest{Name: fmt.Sprint("p", n), Files: mounts("a")})
	}
	wants(t, err, fleet.CodePayloadTooLarge, "ann")
	if n < 3 || n > 6 {
		t.Errorf("refused at number %d", n)
	}
	if _, err := d.Up(as(t, "bob", fleet.RoleUser), service.UpRequest{Name: "p", Files: mounts("a")}); err != nil {
		t.Errorf("another owner: %v", err)
	}
}

// What an owner and a marquee may have holds also for two who come at once: both
// found room, and the second to write finds none.
func TestTwoAtOnceTakeNoMoreThanTheyMay(t *testing.T) {
	for name, c := range map[string]struct {
		fill    int
		marquee func(i int) model.MarqueeID
		says    string
	}{
		"marquee": {service.MaxPerMarquee - 1, func(int) model.MarqueeID { return "idbox" }, "marquee box"},
		"owner":   {service.MaxPerOwner - 1, func(i int) model.MarqueeID { return model.MarqueeID(fmt.Sprint("elsewhere", i/50)) }, "ann has"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, "box")
			ann := as(t, "ann", fleet.RoleUser)
			d.update(func(tx *state.Tx) error {
				for i := range c.fill {
					id := fmt.Sprint("q", i)
					if err := records.PutPlayground(tx, records.Playground{Name: id, Owner: "ann", Playground: model.Playground{ID: model.PlaygroundID(id), Marquee: c.marquee(i)}}); err != nil {
						return err
					}
				}
				return nil
			})
			d.sealer.all = new(sync.WaitGroup)
			d.sealer.all.Add(2)
			errs := make(chan error, 2)
			for i := range 2 {
				go func() {
					_, err := d.Up(ann, service.UpRequest{Name: fmt.Sprint("p", i), Files: files("a")})
					errs <- err
				}()
			}
			first, second := <-errs, <-errs
			if first == nil {
				first, second = second, first
			}
			if second != nil {
				t.Errorf("neither was taken: %v", second)
			}
			wants(t, first, fleet.CodeConflict, c.says)
			var refused *fleet.Error
			if !errors.As(first, &refused) || refused.Details[fleet.DetailRemedy] == "" || refused.Details[fleet.DetailLimit] != fmt.Sprint(c.fill+1) {
				t.Errorf("%+v", refused)
			}
		})
	}
}

// A marquee has room for what is there, not for tricks that are done and kept.
func TestRoom(t *testing.T) {
	d := newDesk(t, "box")
	fill := func(done bool) {
		d.update(func(tx *state.Tx) error {
			for i := range service.MaxPerMarquee {
				id := fmt.Sprint("q", i)
				p := records.Playground{Name: id, Owner: "bob", Playground: model.Playground{ID: model.PlaygroundID(id), Marquee: "idbox", Trick: &model.Trick{}, State: model.StateRunning}}
				if done {
					p.State = model.StateCompleted
				}
				if err := records.PutPlayground(tx, p); err != nil {
					return err
				}
			}
			return nil
		})
	}
	room := func() error {
		return d.store.View(func(tx *state.ReadTx) error {
			m, _ := records.Marquees.Get(tx, "idbox")
			return service.Room(tx, "ann", m)
		})
	}
	fill(false)
	wants(t, room(), fleet.CodeConflict, "marquee box")
	fill(true)
	if err := room(); err != nil {
		t.Error(err)
	}
}
