package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

const actor = "user:op"

var (
	pinA, pinB = strings.Repeat("a", 64), strings.Repeat("b", 64)
	errPinned  = fleet.Errorf(fleet.CodeUnavailable, "the host shows the certificate %s; it is registered with %s", pinB, pinA).
			With(fleet.DetailReason, fleet.ReasonCertificate).With(fleet.DetailShown, pinB)
)

func TestLabel(t *testing.T) {
	for name, tt := range map[string]struct {
		set    map[string]string
		remove []string
		want   map[string]string
		says   []string // in the refusal
	}{
		"set":                 {set: map[string]string{"zone": "b", "disk": "ssd"}, want: map[string]string{"zone": "b", "disk": "ssd", "rack": "7"}},
		"remove":              {remove: []string{"rack"}, want: map[string]string{"zone": "a"}},
		"swap":                {set: map[string]string{"row": "7"}, remove: []string{"rack"}, want: map[string]string{"zone": "a", "row": "7"}},
		"nothing":             {says: []string{"at least one"}},
		"a key with a typo":   {remove: []string{"rak"}, says: []string{"rak", "rack, zone"}},
		"a bad value":         {set: map[string]string{"zone": "-"}, says: []string{"zone"}},
		"too many of them":    {set: many(fleet.MaxLabels), says: []string{"64 labels"}},
		"half of it is wrong": {set: map[string]string{"row": "7"}, remove: []string{"rak"}, says: []string{"rak"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.register(t, func(r *RegisterRequest) { r.Labels = map[string]string{"zone": "a", "rack": "7"} })
			err := f.svc.Label(t.Context(), "local", tt.set, tt.remove, actor)
			h, _ := f.svc.Get("local")
			if tt.says == nil {
				if err != nil || !maps.Equal(h.Labels, tt.want) {
					t.Errorf("%v, %v", h.Labels, err)
				}
				return
			}
			var fe *fleet.Error
			if !errors.As(err, &fe) || fe.Code != fleet.CodeInvalidArgument {
				t.Fatalf("got %v", err)
			}
			for _, s := range tt.says {
				if !strings.Contains(fe.Message+fe.Details[fleet.DetailLimit], s) {
					t.Errorf("%q %v does not say %q", fe.Message, fe.Details, s)
				}
			}
			if len(h.Labels) != 2 {
				t.Errorf("labels %v", h.Labels)
			}
		})
	}
	if err := setup(t).svc.Label(t.Context(), "none", map[string]string{"a": "b"}, nil, actor); !errors.Is(err, fleet.ErrHostNotFound) {
		t.Error(err)
	}
}

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = "v"
	}
	return m
}

// contacts lets hosts be met: it answers with pin, or err.
func (f *fixture) contacts(pin *string, err *error) (met *[]string) {
	met = new([]string)
	f.svc.cfg.Contact = func(_ context.Context, url, token string) (string, error) {
		*met = append(*met, url+" "+token)
		return *pin, *err
	}
	return met
}

func secure(r *RegisterRequest) { r.URL = "https://h:1" }

func TestRegisterPinsWhatTheHostProved(t *testing.T) {
	f := setup(t)
	pin, failure := pinA, error(nil)
	met := f.contacts(&pin, &failure)
	h := f.register(t, secure)
	if h.CertSHA256 != pinA || !slices.Equal(*met, []string{"https://h:1 secret token"}) {
		t.Errorf("pinned %q, met %q", h.CertSHA256, *met)
	}
	if f.agent.pins[0] != pinA {
		t.Error("the token was sent to a host whose certificate was not pinned")
	}
	// A fingerprint that is given is not asked for.
	h = f.register(t, func(r *RegisterRequest) { secure(r); r.CertSHA256 = pinB })
	if h.CertSHA256 != pinB || len(*met) != 1 {
		t.Errorf("pinned %q, met %q", h.CertSHA256, *met)
	}
	if diff := cmp.Diff([]string{fleet.EventHostRegistered, fleet.EventHostRepinned, fleet.EventHostRegistered}, f.events(t)); diff != "" {
		t.Error(diff)
	}
	// Without a token there is nothing to prove: the certificate has to be trusted.
	f.register(t, func(r *RegisterRequest) { secure(r); r.Token = "" })
	if len(*met) != 1 || !slices.Contains(f.agent.pins, "") {
		t.Errorf("met %q without a token, pinned %q", *met, f.agent.pins)
	}
	// Plain addresses are on this machine.
	f.register(t, func(r *RegisterRequest) { r.ID, r.URL = "local", "unix:///run/x.sock" })
	if len(*met) != 1 {
		t.Errorf("met %q", *met)
	}
}

func TestRegisterOfAHostThatProvesNothing(t *testing.T) {
	f := setup(t)
	pin, failure := "", error(fleet.Wrap(fleet.CodeUnavailable, provider.ErrUnauthorized, "no"))
	f.contacts(&pin, &failure)
	_, err := f.svc.Register(t.Context(), request(secure))
	var pe *ProbeError
	if !errors.As(err, &pe) || fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("a refused token: %v", err)
	}
	failure = errAway
	if _, err = f.svc.Register(t.Context(), request(secure)); !errors.As(err, &pe) || fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("silence: %v", err)
	}
	if len(f.agent.opened) != 0 {
		t.Error("the token was sent all the same")
	}
	// With all of it declared it is taken in, and pinned at its first answer.
	h := f.register(t, func(r *RegisterRequest) { secure(r); r.Capacity = full })
	if h.CertSHA256 != "" || len(f.agent.opened) != 0 {
		t.Errorf("%+v", h)
	}
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Unseen || len(f.agent.opened) != 0 {
		t.Errorf("looked at without a pin: %v", obs.Quality())
	}
	pin, failure = pinA, nil
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Complete || f.agent.pins[0] != pinA {
		t.Errorf("%v %q, pins %q", obs.Quality(), obs.Reason(), f.agent.pins)
	}
	if h, _ = f.svc.Get("local"); h.CertSHA256 != pinA || h.Facts.RegistryID != "reg1" {
		t.Errorf("%+v", h)
	}
}

func TestRepin(t *testing.T) {
	for name, tt := range map[string]struct {
		give    string
		proves  string
		failure error
		agent   func(*agent)
		want    string // the pin in the end
		code    fleet.Code
	}{
		"as the operator gives it":  {give: pinB, want: pinB},
		"colons and case":           {give: strings.ToUpper(pinB[:2] + ":" + pinB[2:]), want: pinB},
		"as the host proves it":     {proves: pinB, want: pinB},
		"the same again":            {give: pinA, want: pinA},
		"no fingerprint":            {give: "x", want: pinA, code: fleet.CodeInvalidArgument},
		"nobody proves anything":    {failure: errAway, want: pinA, code: fleet.CodeUnavailable},
		"somebody else":             {failure: fleet.Wrap(fleet.CodeUnavailable, provider.ErrUnauthorized, "no"), want: pinA, code: fleet.CodeUnauthorized},
		"not what it shows":         {give: pinB, agent: func(a *agent) { a.err = errPinned }, want: pinA, code: fleet.CodeUnavailable},
		"another data directory":    {give: pinB, agent: func(a *agent) { a.facts.RegistryID = "reg2" }, want: pinA, code: fleet.CodeConflict},
		"another machine behind it": {proves: pinB, agent: func(a *agent) { a.facts.MachineID = "m2" }, want: pinA, code: fleet.CodeConflict},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.contacts(&tt.proves, &tt.failure)
			f.register(t, func(r *RegisterRequest) { secure(r); r.CertSHA256 = pinA })
			if tt.agent != nil {
				tt.agent(f.agent)
			}
			err := f.svc.Repin(t.Context(), "local", tt.give, actor)
			if h, _ := f.svc.Get("local"); fleet.CodeOf(err) != tt.code || h.CertSHA256 != tt.want {
				t.Errorf("pinned %.8s, %v", h.CertSHA256, err)
			}
			if told := slices.Contains(f.events(t), fleet.EventHostRepinned); told != (tt.want == pinB) {
				t.Errorf("events %v", f.events(t))
			}
		})
	}
	f := setup(t)
	f.register(t, nil)
	if err := f.svc.Repin(t.Context(), "local", pinA, actor); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("a host without TLS: %v", err)
	}
	if err := f.svc.Repin(t.Context(), "none", pinA, actor); !errors.Is(err, fleet.ErrHostNotFound) {
		t.Errorf("no host: %v", err)
	}
}

// Another certificate is refused and told once, whatever the number of looks.
func TestCertificateAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		h := f.register(t, func(r *RegisterRequest) { secure(r); r.CertSHA256 = pinA })
		defer f.run(t)()
		f.agent.setErr(errPinned)
		for range 2 {
			if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Unseen || !strings.Contains(obs.Reason(), pinB) {
				t.Errorf("%v %q", obs.Quality(), obs.Reason())
			}
		}
		synctest.Wait()
		if s := f.svc.Sighting(h.ID); s.Certificate != pinB {
			t.Errorf("sighting %+v", s)
		}
		f.agent.setErr(nil)
		f.svc.Look(t.Context(), h)
		synctest.Wait()
		if s := f.svc.Sighting(h.ID); s.Certificate != "" {
			t.Errorf("sighting %+v", s)
		}
		if diff := cmp.Diff([]string{fleet.EventHostRegistered, fleet.EventHostCertificate}, f.events(t)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestForget(t *testing.T) {
	f := setup(t)
	var lost []string
	f.svc.cfg.Lost = func(uids []string) { lost = uids }
	h := f.register(t, nil)
	f.update(t, func(tx *state.Tx) error { return errors.Join(putVM(tx, "a", "u1"), putVM(tx, "b", "u2")) })
	if _, err := f.svc.Forget(t.Context(), h.ID, actor); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Fatalf("a host that answers: %v", err)
	}
	f.agent.setErr(errAway)
	f.svc.Look(t.Context(), h)
	f.agent.setErr(nil)
	if _, err := f.svc.Forget(t.Context(), h.ID, actor); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Fatalf("a host that answers again: %v", err)
	}
	restarted, err := New(f.svc.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := restarted.Forget(t.Context(), h.ID, actor); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Fatalf("a host that answers, by a server that has not looked yet: %v", err)
	}
	if err := restarted.Close(); err != nil {
		t.Fatal(err)
	}
	f.agent.setErr(errAway)
	f.svc.Look(t.Context(), h)
	out, err := f.svc.Forget(t.Context(), h.ID, actor)
	if err != nil || out.Lost != 2 || !slices.Equal(out.Names, []string{"a", "b"}) || !slices.Equal(lost, []string{"u1", "u2"}) {
		t.Fatalf("%+v, told of %v, %v", out, lost, err)
	}
	if _, err := f.svc.Get(h.ID); !errors.Is(err, fleet.ErrHostNotFound) {
		t.Error(err)
	}
	if err := f.store.View(func(tx *state.ReadTx) error {
		life, ok := tx.Lives().Latest("a")
		if !ok || tx.VMs().Len() != 0 || life.Reason.Rule != fleet.RuleHostLost || life.Reason.Actor != actor || !strings.Contains(life.Reason.Evidence, "did not answer") {
			t.Errorf("%d rows, life %+v", tx.VMs().Len(), life)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Forget(t.Context(), h.ID, actor); !errors.Is(err, fleet.ErrHostNotFound) {
		t.Error(err)
	}
	// It comes back after all, with both of them, and registers under another id.
	f.agent.setErr(nil)
	f.agent.listing.VMs = []fleet.ObservedVM{{ID: "a", UID: "u1", Running: true}, {ID: "b", UID: "u2", Running: true}}
	f.svc.cfg.Store = &awayStore{Store: f.store, err: fleet.ErrStoreUnavailable}
	if _, err := f.svc.Register(t.Context(), request(func(r *RegisterRequest) { r.ID = "unstored" })); err == nil {
		t.Fatal("registered without the store")
	}
	f.svc.cfg.Store = f.store
	if s := f.svc.Sighting("unstored"); s.Returning != "" {
		t.Errorf("sighting %+v of a host that there is not", s)
	}
	back := f.register(t, func(r *RegisterRequest) { r.ID = "back" })
	for _, left := range []int{2, 1} {
		if why := f.svc.Unreachable()["back"]; why == "" {
			t.Fatal("it takes new environments before it was compared")
		}
		f.agent.listing.VMs = f.agent.listing.VMs[:left]
		f.svc.Look(t.Context(), back)
		if why := f.svc.Unreachable()["back"]; !strings.Contains(why, fmt.Sprintf("%d environments that have ended", left)) {
			t.Errorf("with %d left: %q", left, why)
		}
	}
	f.agent.listing.VMs = nil
	f.svc.Look(t.Context(), back)
	if why := f.svc.Unreachable(); len(why) != 0 {
		t.Errorf("compared, and still held: %v", why)
	}
	if err := f.svc.Remove(t.Context(), "back", actor); err != nil {
		t.Fatal(err)
	}
	f.register(t, func(r *RegisterRequest) { r.ID = "again" })
	if why := f.svc.Unreachable(); len(why) != 0 {
		t.Errorf("remembered although it was taken back: %v", why)
	}
}

// A host that was cut off for an hour keeps what it has, and takes nothing new
// until it was compared.
func TestCutOffForAnHourAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		h := f.register(t, nil)
		stop := f.run(t)
		defer func() { stop() }()
		f.update(t, func(tx *state.Tx) error { return putVM(tx, "kept", "u1") })
		f.svc.Look(t.Context(), h)
		f.agent.setErr(errAway)
		for range 120 {
			pass(30 * time.Second)
			f.svc.Look(t.Context(), h)
		}
		f.agent.setErr(nil)
		kept, over, moved := fleet.ObservedVM{ID: "kept", UID: "u1", Running: true}, fleet.ObservedVM{ID: "over", UID: "u0", Running: true}, fleet.ObservedVM{ID: "moved", UID: "u2", Running: true}
		f.update(t, func(tx *state.Tx) error {
			other := h
			other.ID, other.Facts.RegistryID = "other", "reg9"
			vm := fleet.VM{ID: "moved", UID: "u2", State: fleet.VMStateProvisioning, TaskID: "moved", HostID: "other", Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1}}
			return errors.Join(tx.PutHost(other), tx.PutVM(vm))
		})
		// Still taking hold of what it runs: nothing can be said yet.
		f.agent.listing.Complete, f.agent.listing.Reason = false, "adopting"
		f.svc.Look(t.Context(), h)
		if f.svc.Unreachable()[h.ID] == "" {
			t.Error("it takes new environments before it told what it runs")
		}
		f.agent.listing.Complete, f.agent.listing.VMs = true, []fleet.ObservedVM{kept, over, moved}
		f.svc.Look(t.Context(), h)
		if why := f.svc.Unreachable()[h.ID]; !strings.Contains(why, "1 environments that have ended") || !strings.Contains(why, "1 that are elsewhere") {
			t.Errorf("held because %q", why)
		}
		f.agent.listing.VMs = []fleet.ObservedVM{kept}
		f.svc.Look(t.Context(), h)
		if why := f.svc.Unreachable(); len(why) != 0 {
			t.Errorf("held because %v", why)
		}
		if err := f.store.View(func(tx *state.ReadTx) error {
			if _, ok := tx.VMs().GetUID("u1"); !ok {
				t.Error("what it runs was ended")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{fleet.EventHostRegistered, fleet.EventHostUnreachable, fleet.EventHostReachable, fleet.EventHostReturned}, f.events(t)); diff != "" {
			t.Error(diff)
		}
	})
}

// What cannot be cleared does not keep a host from work for ever.
func TestReturningEnds(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.agent.setErr(errAway)
	for range DefaultUnreachableLooks {
		f.svc.Look(t.Context(), h)
	}
	f.agent.setErr(nil)
	f.agent.listing.VMs = []fleet.ObservedVM{{ID: "x", UID: "ux"}}
	for i := range maxCompared {
		if i > 0 && f.svc.Sighting(h.ID).Returning == "" {
			t.Fatalf("after %d looks", i)
		}
		f.svc.Look(t.Context(), h)
	}
	if why := f.svc.Sighting(h.ID).Returning; why != "" {
		t.Error(why)
	}
}

func TestReboot(t *testing.T) {
	f := setup(t)
	f.agent.facts.BootID, f.agent.listing.Facts.BootID = "b1", "b1"
	h := f.register(t, nil)
	f.update(t, func(tx *state.Tx) error { return putVM(tx, "a", "u1") })
	f.agent.facts.BootID, f.agent.listing.Facts.BootID = "b2", "b2"
	for range 2 {
		f.svc.Look(t.Context(), h)
		h, _ = f.svc.Get(h.ID)
	}
	f.agent.facts.BootID, f.agent.listing.Facts.BootID = "b3", "b3"
	f.register(t, nil)
	events, err := f.store.Events(t.Context(), state.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, e := range events {
		if e.Type == fleet.EventHostRebooted {
			said = append(said, e.Reason.Evidence)
		}
	}
	want := []string{"boot id b2, was b1; 1 environments were on it", "boot id b3, was b2; 1 environments were on it"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
}

// A capacity in a listing that differs from the record is asked for soon.
func TestListingTellsAnotherCapacity(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.agent.listing.Capacity = fleet.HostCapacity{CPUs: 4, RamMB: 8192, StorageGB: 100, VMCount: 32, Arch: "x86_64"}
	f.svc.Look(t.Context(), h)
	if due := f.svc.due(time.Now()); len(due) != 0 {
		t.Errorf("the same capacity: %v is due", due)
	}
	f.agent.listing.Capacity.CPUs = 8
	f.svc.Look(t.Context(), h)
	if due := f.svc.due(time.Now()); !slices.Equal(due, []string{h.ID}) {
		t.Errorf("due %v", due)
	}
}

func TestRemovalNamesWhatIsThere(t *testing.T) {
	f := setup(t)
	f.agent.capacity.CPUs = 64
	h := f.register(t, nil)
	f.update(t, func(tx *state.Tx) error {
		for i := range maxNamed + 5 {
			if err := putVM(tx, fmt.Sprintf("vm-%02d", i), fmt.Sprintf("u%02d", i)); err != nil {
				return err
			}
		}
		return nil
	})
	err := f.svc.Remove(t.Context(), h.ID, actor)
	if !errors.Is(err, fleet.ErrHostHasVMs) || !strings.Contains(err.Error(), "25") || !strings.Contains(err.Error(), "vm-19") || strings.Contains(err.Error(), "vm-20") {
		t.Errorf("got %v", err)
	}
}

func TestDrainingHostAndCordons(t *testing.T) {
	f := setup(t)
	f.register(t, nil)
	drain := func() {
		f.update(t, func(tx *state.Tx) error {
			h, _ := tx.Hosts().Get("local")
			row := *h
			row.State, row.Drain = fleet.HostDraining, &fleet.HostDrain{ID: "d", Was: fleet.HostActive}
			return tx.PutHost(row)
		})
	}
	drain()
	if h := f.register(t, nil); h.State != fleet.HostDraining || h.Drain == nil {
		t.Errorf("registered again it forgot its drain: %+v", h)
	}
	if err := f.svc.Cordon(t.Context(), "local", actor); err != nil {
		t.Fatal(err)
	}
	if h, _ := f.svc.Get("local"); h.State != fleet.HostDraining || h.Drain == nil || h.Drain.Was != fleet.HostCordoned {
		t.Errorf("a cordon ended the drain, or ends with its cancel: %+v", h)
	}
	before := len(f.events(t))
	if err := f.svc.Cordon(t.Context(), "local", actor); err != nil || len(f.events(t)) != before {
		t.Errorf("a second cordon: %v, events %v", err, f.events(t))
	}
	if err := f.svc.Uncordon(t.Context(), "local", actor); err != nil {
		t.Fatal(err)
	}
	if h, _ := f.svc.Get("local"); h.State != fleet.HostActive || h.Drain != nil {
		t.Errorf("%+v", h)
	}
	if !slices.Contains(f.events(t), fleet.EventHostDrainCancelled) {
		t.Errorf("events %v", f.events(t))
	}
}
