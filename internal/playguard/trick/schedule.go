package trick

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// SealKindRequest is what a schedule sends to its marquee: it has values of
// variables in it.
const SealKindRequest = "trick_request"

// Bounds of schedules.
const (
	MaxSchedules = 200 // of one owner
	maxName      = 60  // bytes; the time of a run follows in the trick's name
)

// Schedule starts tricks by the clock.
type Schedule struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Owner   string `json:"owner"`
	Marquee string `json:"marquee,omitempty"` // as it was given
	Timing
	Limits        Limits    `json:"limits,omitzero"`
	RequestSealed []byte    `json:"request_sealed,omitempty"`
	Paused        bool      `json:"paused,omitempty"`
	Held          time.Time `json:"held,omitzero"`     // since then nobody can act for its owner
	Last          time.Time `json:"last"`              // see Facts
	Waits         time.Time `json:"waits,omitzero"`    // the run that waits, and was told of
	Fired         time.Time `json:"fired,omitzero"`    // the last run that was begun
	Trick         string    `json:"trick,omitempty"`   // id of that
	Trouble       string    `json:"trouble,omitempty"` // why the last could not be begun
	Tries         int       `json:"tries,omitempty"`
	CreatedAt     time.Time `json:"created_at"`
	UpdatedAt     time.Time `json:"updated_at"`
	Revision      uint64    `json:"revision"`
}

// Schedules is the collection.
var Schedules = state.NewCollection[Schedule]("trick_schedules")

// NewSchedule asks for a schedule. Request.Up.Name is that of the schedule.
type NewSchedule struct {
	Request
	Timing Timing
}

// Scheduled is a schedule as people see it.
type Scheduled struct {
	Schedule
	Next   time.Time // zero: it is paused or held
	Active int       // tricks of it that still run
}

func seen(tx state.Reader, s *Schedule, now time.Time) Scheduled {
	out := Scheduled{Schedule: *s, Next: Decide(Facts{Now: now, Timing: s.Timing, Paused: s.Paused, Held: !s.Held.IsZero(), Last: s.Last}).Next}
	out.RequestSealed = nil
	for _, p := range records.Playgrounds.All(tx) {
		if p.Trick != nil && p.Trick.Schedule == s.ID && !Over(p.Playground) {
			out.Active++
		}
	}
	return out
}

// find returns a schedule that the caller sees, by id or name.
func find(ctx context.Context, tx state.Reader, id string) (*Schedule, error) {
	sees := auth.Visible(ctx)
	if s, ok := Schedules.Get(tx, id); ok && sees(s.Owner) {
		return s, nil
	}
	owner, _ := service.Caller(ctx)
	var found *Schedule
	for _, s := range Schedules.All(tx) {
		if s.Name == id && sees(s.Owner) && (found == nil || s.Owner == owner) {
			found = s
		}
	}
	if found == nil {
		return nil, fleet.Errorf(fleet.CodeNotFound, "there is no schedule %.80q", id).With(fleet.DetailScope, "schedule")
	}
	return found, nil
}

func tell(tx *state.Tx, s *Schedule, by fleet.Reason, typ, text string, payload any) {
	tx.Emit(fleet.Event{
		EntityType: fleet.EntityTrickSchedule, EntityID: s.ID, Owner: s.Owner, Type: typ, Error: text, Reason: &by, Payload: events.Payload(payload),
	})
}

func put(tx *state.Tx, s Schedule) error {
	s.Revision, s.UpdatedAt = tx.Revision()+1, tx.Now()
	return Schedules.Put(tx, s.ID, &s)
}

// AddSchedule makes a schedule. What it would start is checked now.
func (s *Service) AddSchedule(ctx context.Context, req NewSchedule) (out Scheduled, err error) {
	owner, by := service.Caller(ctx)
	req.Timing.Concurrency = cmp.Or(req.Timing.Concurrency, Forbid)
	name := req.Up.Name
	if len(name) > maxName || name == "" || strings.TrimSpace(name) != name || strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return out, fleet.Invalid("name", fmt.Sprintf("1 to %d bytes of printable text", maxName), "give another name", "%.80q is not one", name)
	}
	if err := req.Timing.Check(); err != nil {
		return out, err
	}
	t, err := req.Limits.trick()
	if err != nil {
		return out, err
	}
	probe := req.Up
	probe.Name, probe.Trick, probe.Expires, probe.Plan = runName(name, time.Now()), t, "", ""
	if _, err := s.Playguard.Plan(ctx, probe); err != nil {
		return out, err
	}
	sch := Schedule{ID: strings.ToLower(uid.New()), Name: name, Owner: owner, Marquee: req.Up.Marquee, Timing: req.Timing, Limits: req.Limits}
	raw, err := json.Marshal(req.Up)
	if err != nil {
		return out, fmt.Errorf("encode what schedule %s starts: %w", name, err)
	}
	if sch.RequestSealed, err = s.Sealer.Seal(SealKindRequest, sch.ID, raw); err != nil {
		return out, fmt.Errorf("seal what schedule %s starts: %w", name, err)
	}
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		n := 0
		for _, o := range Schedules.All(tx) {
			if o.Owner != owner {
				continue
			}
			if n++; o.Name == name {
				return fleet.Errorf(fleet.CodeConflict, "there is a schedule %s", name).With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "take another name, or remove it first")
			}
		}
		if n >= MaxSchedules {
			return fleet.Errorf(fleet.CodeConflict, "%s has %d schedules", owner, n).
				With(fleet.DetailLimit, fmt.Sprint(MaxSchedules)).With(fleet.DetailRemedy, "remove one that is not used")
		}
		sch.CreatedAt, sch.Last = tx.Now(), tx.Now()
		tell(tx, &sch, by, fleet.EventTrickScheduleCreated, "", map[string]string{"name": name})
		out = seen(tx, &sch, tx.Now())
		return put(tx, sch)
	})
	s.nudge()
	return out, err
}

// Schedule returns one by id or name.
func (s *Service) Schedule(ctx context.Context, id string) (out Scheduled, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		row, err := find(ctx, tx, id)
		if err == nil {
			out = seen(tx, row, time.Now())
		}
		return err
	})
	return out, err
}

// AllSchedules lists those that the caller sees.
func (s *Service) AllSchedules(ctx context.Context) (out []Scheduled, err error) {
	sees := auth.Visible(ctx)
	err = s.Store.View(func(tx *state.ReadTx) error {
		for _, row := range Schedules.All(tx) {
			if sees(row.Owner) {
				out = append(out, seen(tx, row, time.Now()))
			}
		}
		return nil
	})
	return out, err
}

// Pause stops a schedule from starting anything, or lets it go on: with what is
// due from then on.
func (s *Service) Pause(ctx context.Context, id string, pause bool) (out Scheduled, err error) {
	_, by := service.Caller(ctx)
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		row, err := find(ctx, tx, id)
		if err != nil {
			return err
		}
		sch := *row
		if sch.Paused == pause {
			out = seen(tx, &sch, tx.Now())
			return nil
		}
		sch.Paused, sch.Waits, sch.Tries = pause, time.Time{}, 0
		if sch.Trouble = ""; !sch.Held.IsZero() {
			sch.Trouble = whyHeld
		}
		if !pause {
			sch.Last = tx.Now()
		}
		tell(tx, &sch, by, fleet.EventTrickScheduleUpdated, "", map[string]bool{"paused": pause})
		out = seen(tx, &sch, tx.Now())
		return put(tx, sch)
	})
	s.nudge()
	return out, err
}

// RemoveSchedule removes a schedule. Its tricks stay.
func (s *Service) RemoveSchedule(ctx context.Context, id string) error {
	_, by := service.Caller(ctx)
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		row, err := find(ctx, tx, id)
		if err != nil {
			return err
		}
		tell(tx, row, by, fleet.EventTrickScheduleRemoved, "", nil)
		return Schedules.Delete(tx, row.ID)
	})
	s.nudge()
	return err
}

// Fire starts a trick of a schedule now, beside its times.
func (s *Service) Fire(ctx context.Context, id string) (service.Playground, error) {
	var sch Schedule
	if err := s.Store.View(func(tx *state.ReadTx) error {
		row, err := find(ctx, tx, id)
		if err == nil {
			sch = *row
		}
		return err
	}); err != nil {
		return service.Playground{}, err
	}
	return s.start(asOwner(ctx, sch.Owner), sch, time.Now().UTC().Truncate(time.Second))
}

// runName is the name of the trick that a schedule starts for a time: the same
// time never starts two.
func runName(schedule string, slot time.Time) string {
	return schedule + "-" + slot.UTC().Format("20060102-150405")
}

// start begins the trick of a time.
func (s *Service) start(ctx context.Context, sch Schedule, slot time.Time) (service.Playground, error) {
	raw, err := s.Sealer.Open(SealKindRequest, sch.ID, sch.RequestSealed)
	if err != nil {
		return service.Playground{}, fmt.Errorf("open what schedule %s starts: %w", sch.Name, err)
	}
	var up service.UpRequest
	if err := json.Unmarshal(raw, &up); err != nil {
		return service.Playground{}, fmt.Errorf("read what schedule %s starts: %w", sch.Name, err)
	}
	t, err := sch.Limits.trick()
	if err != nil {
		return service.Playground{}, err
	}
	t.Schedule, t.Slot = sch.ID, slot
	up.Name = runName(sch.Name, slot)
	return s.run(ctx, up, t)
}

// asOwner acts for the owner of a schedule, with the rights of a user.
func asOwner(ctx context.Context, owner string) context.Context {
	if owner == fleet.OwnerMaster {
		return auth.With(ctx, auth.Master)
	}
	return auth.With(ctx, auth.Principal{Name: owner, Role: fleet.RoleUser})
}

// exists reports whether a trick was not begun because it has been already.
func exists(err error) bool {
	var e *fleet.Error
	return errors.As(err, &e) && e.Code == fleet.CodeConflict && e.Details[fleet.DetailReason] == "exists"
}

// facts are what a schedule's next step depends on.
func facts(tx state.Reader, sch *Schedule, now time.Time) Facts {
	f := Facts{Now: now, Timing: sch.Timing, Paused: sch.Paused, Last: sch.Last}
	for _, p := range records.Playgrounds.All(tx) {
		if p.Trick != nil && p.Trick.Schedule == sch.ID && p.State != model.StateDestroying {
			f.Runs = append(f.Runs, Run{ID: p.ID, Slot: p.Trick.Slot, Over: Over(p.Playground), Failed: p.Trick.Last().Code != 0})
		}
	}
	return f
}
