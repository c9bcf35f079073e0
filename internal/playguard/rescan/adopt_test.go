package rescan

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const nonce = "00112233445566778899aabbccddeeff"

var (
	here  = model.Identity{Installation: "inst1", MachineID: "m", DaemonID: "d", DataRoot: "/data", Witness: "inst1"}
	ops   = auth.With(context.Background(), auth.Principal{Name: "ops", Role: fleet.RoleMaster})
	forge = model.Marker{
		Kind: model.KindPlayground, Installation: "inst1", Marquee: "m1", Playground: "p1", Epoch: 1, Name: "shop", Owner: "ann",
		Branch: &model.MarkerBranch{Repository: "https://evil.example.org/x", Branch: "main", Checkout: "x-main", Secret: "git"},
	}
)

// bench is a scanner over real records, and a host that shows one project.
type bench struct {
	*Scanner
	t   *testing.T
	row records.Marquee
}

func newBench(t *testing.T) *bench {
	t.Helper()
	store, sealer := storetest.OpenSealed(t)
	b := &bench{New(Config{Store: store, Sealer: sealer, Installation: "inst1"}), t,
		records.Marquee{Name: "box", Marquee: model.Marquee{ID: "m1", Root: "/opt/fuse", Admin: model.AdminActive, Identity: here}}}
	b.update(func(tx *state.Tx) error { return records.PutMarquee(tx, b.row) })
	return b
}

func (b *bench) update(fn func(tx *state.Tx) error) {
	b.t.Helper()
	if _, err := b.Store.Update(b.t.Context(), fn); err != nil {
		b.t.Fatal(err)
	}
}

// shows is a look at a directory with a marker.
func (b *bench) shows(m model.Marker, path string) observe.ProjectLook {
	b.t.Helper()
	return b.sees(m, path, "").Project(m.Project)
}

// sees is such a look at a host with operations.
func (b *bench) sees(m model.Marker, path, ops string) observe.Look {
	b.t.Helper()
	raw, err := m.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	name := m.Project.String()
	frame, err := observe.Encode(nonce, []observe.Part{
		{Name: "host", Out: fmt.Appendf(nil, "installation=inst1\nmachine_id=m\nboot_id=b\nclock=%d\nuptime=9\nepoch=1\ndisk_free=1\nodd_dirs=0\n", time.Now().Unix())},
		{Name: "daemon", Out: []byte("id=d\nroot=/data\nwitness=inst1\nversion=28\nstorage=x\nstarted=1\n")},
		{Name: "compose", Out: []byte("flavour=v2\nversion=2.40.3\n")}, {Name: "containers"}, {Name: "foreign"}, {Name: "volumes"}, {Name: "ops", Out: []byte(ops)},
		{Name: "projects", Out: []byte(name + "\n")}, {Name: "marker:" + name, Out: raw},
		{Name: "files:" + name, Out: []byte("path=" + path + "\ncompose=\n")}, {Name: "checkouts:" + name},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	now := time.Now()
	look := observe.Conclude(observe.Trip{Nonce: nonce, From: now, To: now, Ending: observe.EndedExit, Stdout: frame}, here)
	if look.Verdict() != observe.Seen {
		b.t.Fatalf("%s: %s", look.Verdict(), look.Detail())
	}
	return look
}

// takes adopts what a marker says, and returns the record.
func (b *bench) takes(m model.Marker) (out records.Playground, err error) {
	b.t.Helper()
	if m.Project, err = model.NewProject("shop", m.Playground); err != nil {
		b.t.Fatal(err)
	}
	v := records.Version{Digest: "d1", Compose: []byte("# fuse.route shop.example.org web 80 traefik\nservices:\n  web: {image: ghcr.io/x/y}\n")}
	if err := b.take(ops, b.row, b.shows(m, "/opt/fuse/playgrounds/"+m.Project.String()), v, ""); err != nil {
		return out, err
	}
	return out, b.Store.View(func(tx *state.ReadTx) error {
		p, ok := records.Playgrounds.Get(tx, string(m.Playground))
		if !ok {
			return errors.New("it is not in the records")
		}
		out = *p
		return nil
	})
}

// Whoever can write on a host can write a marker that names somebody else: it
// brings him none of that one's secrets, logins and names.
func TestAMarkerLendsNothing(t *testing.T) {
	b := newBench(t)
	other := records.Playground{Name: "front", Owner: "bob", Routes: []model.Route{{Host: "shop.example.org", Service: "web", Port: 80, Proxy: "traefik"}},
		Playground: model.Playground{ID: "p0", Marquee: "m1"}}
	b.update(func(tx *state.Tx) error { return records.PutPlayground(tx, other) })
	c := &credential.Service{Store: b.Store, Sealer: b.Sealer, Kick: func() {}}
	n := 0
	for _, s := range []credential.Request{
		{Secret: credential.Secret{Owner: "ann", Name: "ghcr.io", Kind: credential.KindRegistry, Username: "ann"}, Value: []byte("hers")},
		{Secret: credential.Secret{Owner: "ops", Name: "ghcr.io", Kind: credential.KindRegistry, Username: "box", Marquee: "m1"}, Value: []byte("the marquee's")},
	} {
		if _, err := c.Set(t.Context(), fleet.Reason{}, s, func() string { n++; return fmt.Sprint("s", n) }); err != nil {
			t.Fatal(err)
		}
	}
	p, err := b.takes(forge)
	if err != nil {
		t.Fatal(err)
	}
	if p.Owner != "ann" || !p.Claimed || p.Source.Secret != "git" {
		t.Errorf("adopted %+v", p)
	}
	if len(p.Routes) != 0 {
		t.Errorf("it has the name of another playground: %v", p.Routes)
	}
	logins := func(p records.Playground) string {
		var raw []byte
		if err := b.Store.View(func(tx *state.ReadTx) (err error) {
			raw, err = credential.Logins(tx, b.Sealer, &p)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	p.Registries = []string{"ghcr.io"}
	lent := logins(p)
	p.Claimed = false
	if own := logins(p); lent == "" || lent == own {
		t.Errorf("before its owner says so it has %s, afterwards %s", lent, own)
	}
}

// What a marker says is shown to people and kept for good: what cannot be so is
// left out.
func TestAMarkerSaysWhatCannotBe(t *testing.T) {
	for what, change := range map[string]func(*model.Marker){
		"a name":       func(m *model.Marker) { m.Name = "\x1b]0;shop\a" },
		"a long name":  func(m *model.Marker) { m.Name = strings.Repeat("x", 3000) },
		"an owner":     func(m *model.Marker) { m.Owner = "ann\n" },
		"a long owner": func(m *model.Marker) { m.Owner = strings.Repeat("x", 3000) },
	} {
		b := newBench(t)
		m := forge
		change(&m)
		p, err := b.takes(m)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if p.Name != "shop" || p.Owner != "ann" && p.Owner != "ops" {
			t.Errorf("%s: it is %q of %q", what, p.Name, p.Owner)
		}
	}
	for _, address := range []string{"ext::sh -c id", "file:///etc", "/etc", "-x", "https://", "https://a/\x1b[2J", ""} {
		m, branch := forge, *forge.Branch
		branch.Repository = address
		m.Branch = &branch
		if got := believe(m); got.Branch != nil {
			t.Errorf("%q is believed", address)
		}
	}
	if got := believe(forge); got.Branch == nil || got.Name != "shop" || got.Owner != "ann" {
		t.Errorf("nothing is believed: %+v", got)
	}
}

// What a sweep is about to set aside, or has, is not adopted beside it: its
// record would be of a directory that goes.
func TestNothingIsAdoptedUnderASweep(t *testing.T) {
	project, err := model.NewProject("shop", "p1")
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]model.Sweep{
		"in flight": {Op: model.SweepOp{Op: model.Op{ID: "o1", Kind: model.OpSweep, Started: time.Now()}, Project: project, Playground: "p1"}},
		"set aside": {Aside: []model.Aside{{Project: project, Playground: "p1", At: time.Now()}}},
	} {
		b := newBench(t)
		row := b.row
		row.Sweep = s
		b.update(func(tx *state.Tx) error { return records.PutMarquee(tx, row) })
		if _, err := b.takes(forge); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A host full of forged directories does not fill the records.
func TestAMarqueeTakesNoMoreThanItMay(t *testing.T) {
	b := newBench(t)
	b.update(func(tx *state.Tx) error {
		for i := range service.MaxPerMarquee {
			id := fmt.Sprintf("q%d", i)
			if err := records.PutPlayground(tx, records.Playground{Name: id, Owner: "bob", Playground: model.Playground{ID: model.PlaygroundID(id), Marquee: "m1"}}); err != nil {
				return err
			}
		}
		return nil
	})
	if _, err := b.takes(forge); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("one more is adopted: %v", err)
	}
}

// A directory that lies elsewhere is not proven ours by its marker.
func TestADirectoryElsewhereIsNotOurs(t *testing.T) {
	b := newBench(t)
	m := forge
	var err error
	if m.Project, err = model.NewProject("shop", "p1"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/opt/fuse/playgrounds/shop--p1": true, "/home/eve/shop--p1": false, "/opt/fuse/playgrounds/other--p1": false} {
		dir, _ := b.shows(m, path).Directory()
		if owned(b.row, dir, m.Project) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

// An end that was written on the host counts again, but nobody finds a playground
// gone that was to end while there were no records.
func TestEndsComeBack(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for what, c := range map[string]struct{ marked, want time.Time }{
		"never":      {},
		"far":        {now.Add(300 * time.Hour), now.Add(300 * time.Hour)},
		"soon":       {now.Add(time.Hour), now.Add(leastLife)},
		"over":       {now.Add(-300 * time.Hour), now.Add(leastLife)},
		"impossible": {now.Add(2 * model.MaxLife), time.Time{}},
	} {
		e := ends(model.Marker{Expires: c.marked}, now)
		if !e.At.Equal(c.want) || e.Due(now.Add(leastLife-time.Second), model.DefaultPolicy()) {
			t.Errorf("%s: it ends %s, want %s", what, e.At, c.want)
		}
	}
	b := newBench(t)
	m := forge
	m.Expires = time.Now().Add(1000 * time.Hour).UTC().Truncate(time.Second)
	p, err := b.takes(m)
	if err != nil || !p.Expiry.At.Equal(m.Expires) {
		t.Errorf("%+v %v", p.Expiry, err)
	}
	if outdated(&p, m) {
		t.Error("a marker that says what the record says is written again")
	}
	q := p
	if q.Expiry = q.Expiry.Extended(time.Hour, time.Now()); !outdated(&q, m) {
		t.Error("an extended end is not written")
	}
	if q.State = model.StateInProgress; outdated(&q, m) {
		t.Error("a marker is written beside a job that writes it")
	}
}

// What was in the lost records alone is named, and nothing is made without it.
func TestWhatIsNeededAgain(t *testing.T) {
	b := newBench(t)
	m, branch := forge, *forge.Branch
	branch.Repository, branch.Variables = "ssh://git@git.example.org/x", []string{"PASSWORD"}
	m.Branch = &branch
	p, err := b.takes(m)
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (out []string) {
		if err := b.Store.View(func(tx *state.ReadTx) error {
			out = needs(tx, &p)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := "secret git|known hosts of git.example.org|variable PASSWORD|login of ghcr.io, if it wants one"
	if got := strings.Join(ask(), "|"); got != want {
		t.Errorf("needs %q, want %q", got, want)
	}
	c := &credential.Service{Store: b.Store, Sealer: b.Sealer, Kick: func() {}}
	for i, s := range []credential.Request{
		{Secret: credential.Secret{Owner: "ann", Name: "git", Kind: credential.KindToken}, Value: []byte("t")},
		{Secret: credential.Secret{Owner: "ops", Name: "ghcr.io", Kind: credential.KindRegistry, Username: "box", Marquee: "m1"}, Value: []byte("t")},
	} {
		if _, err := c.Set(t.Context(), fleet.Reason{}, s, func() string { return fmt.Sprint("s", i) }); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(ask(), "|"); got != "known hosts of git.example.org|variable PASSWORD" {
		t.Errorf("needs %q", got)
	}
}

// What a sweep set aside before the records were lost is theirs again: with its
// age, and for as long as anything that was just set aside.
func TestWhatWasSetAsideIsTakenOver(t *testing.T) {
	b := newBench(t)
	project, err := model.NewProject("old", "p9")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // once
		if left, err := b.takeAside(t.Context(), b.row, []runner.Swept{{Project: project, Age: 72 * time.Hour, Last: "up"}}); err != nil || left != nil {
			t.Fatal(left, err)
		}
	}
	var s model.Sweep
	if err := b.Store.View(func(tx *state.ReadTx) error {
		m, _ := records.Marquees.Get(tx, "m1")
		s = m.Sweep
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(s.Aside) != 1 {
		t.Fatalf("%+v", s)
	}
	a := s.Aside[0]
	if a.Playground != "p9" || !a.Ran || time.Since(a.At) < 72*time.Hour || time.Since(a.Since()) > time.Minute {
		t.Errorf("%+v", a)
	}
}

// What there is no room for is named, and taken in later.
func TestWhatIsSetAsideBeyondTheRoomIsNamed(t *testing.T) {
	b := newBench(t)
	var list []runner.Swept
	for i := range maxAside + 3 {
		project, err := model.NewProject("old", model.PlaygroundID(fmt.Sprintf("p%04d", i)))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, runner.Swept{Project: project})
	}
	left, err := b.takeAside(t.Context(), b.row, list)
	if err != nil || len(left) != 3 || left[0] != list[maxAside].Project {
		t.Fatalf("left %v, %v", left, err)
	}
	b.update(func(tx *state.Tx) error {
		m, _ := records.Marquees.Get(tx, "m1")
		row := *m
		row.Sweep.Aside = row.Sweep.Aside[2:] // they are back, or gone
		return records.PutMarquee(tx, row)
	})
	if left, err = b.takeAside(t.Context(), b.row, list[2:]); err != nil || len(left) != 1 || left[0] != list[maxAside+2].Project {
		t.Errorf("when there is room again: left %v, %v", left, err)
	}
}

// An installation that something is at work for is not taken over.
func TestWhoIsAtWorkIsNotTakenOver(t *testing.T) {
	b := newBench(t)
	m := forge
	var err error
	if m.Project, err = model.NewProject("shop", "p1"); err != nil {
		t.Fatal(err)
	}
	for state, want := range map[string]fleet.Code{"running": fleet.CodeConflict, "lost": "", "0": "", "1": ""} {
		look := b.sees(m, "/opt/fuse/playgrounds/shop--p1", "op1 shop--p1 up 1 "+state+"\n")
		if err := atWork(look, "inst1"); err == nil != (want == "") || err != nil && fleet.CodeOf(err) != want {
			t.Errorf("%s: %v", state, err)
		}
	}
}
