package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Rules of the events below.
const (
	ruleUnreachable = "host_unreachable"
	ruleReachable   = "host_answers"
	ruleProbe       = "host_probe"
)

const (
	// beat is how often silence is judged and probes are looked for.
	beat = 5 * time.Second
	// maxNotices bounds the events that wait for a store that takes none.
	maxNotices = 1024
	// noticeTimeout bounds one try to store them.
	noticeTimeout = 10 * time.Second
)

// sightingPayload is the evidence of both events as data.
type sightingPayload struct {
	Misses     int        `json:"misses"`
	Since      time.Time  `json:"since"`
	LastSeen   *time.Time `json:"last_seen,omitempty"`
	Reason     string     `json:"reason"`
	SilentForS float64    `json:"silent_seconds,omitempty"`
}

func hostEvent(id, kind string, why fleet.Reason, payload any) fleet.Event {
	raw, err := json.Marshal(payload)
	if err != nil {
		raw = nil // plain values always encode
	}
	return fleet.Event{EntityType: fleet.EntityHost, EntityID: id, Type: kind, Reason: &why, Payload: raw}
}

func unreachable(id string, n Sighting) fleet.Event {
	p := sightingPayload{Misses: n.Misses, Since: n.MissedSince.UTC(), Reason: n.Reason}
	seen := "not seen by this server before"
	if !n.LastSeen.IsZero() {
		at := n.LastSeen.UTC()
		p.LastSeen, seen = &at, "last seen "+at.Format(time.RFC3339)
	}
	return hostEvent(id, fleet.EventHostUnreachable, fleet.Reason{
		Actor: fleet.ActorReconcile, Rule: ruleUnreachable,
		Evidence: fmt.Sprintf("%s missed since %s, %s; the last: %s", looks(n.Misses), n.MissedSince.UTC().Format(time.RFC3339), seen, n.Reason),
	}, p)
}

func reachable(id string, at time.Time, before Sighting) fleet.Event {
	gap := at.Sub(before.MissedSince)
	return hostEvent(id, fleet.EventHostReachable, fleet.Reason{
		Actor: fleet.ActorReconcile, Rule: ruleReachable,
		Evidence: fmt.Sprintf("it answered after %s missed in %s", looks(before.Misses), gap.Round(time.Second)),
	}, sightingPayload{Misses: before.Misses, Since: before.MissedSince.UTC(), Reason: before.Reason, SilentForS: gap.Seconds()})
}

func looks(n int) string {
	if n == 1 {
		return "1 look"
	}
	return fmt.Sprintf("%d looks", n)
}

// tell queues an event for Run. It needs the lock and never waits: a store
// that stands still must not hold up looks.
func (s *watch) tell(ev fleet.Event) {
	if len(s.notices) == maxNotices {
		s.log.Warn("event of a host dropped, too many wait to be stored", slog.String("host_id", s.notices[0].EntityID), slog.String("type", s.notices[0].Type))
		s.notices = s.notices[1:]
		s.firstNotice++
	}
	s.notices = append(s.notices, ev)
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// Run stores what there is to say of hosts and asks them for their capacity
// from time to time. It returns nil when ctx ends, and the error of a store
// that this process no longer owns. Nothing waits for it.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	probes := newProbes(s.base)
	defer probes.wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.news:
		case <-tick.C:
			s.silence(time.Now())
			probes.start(ctx, time.Now())
		}
		if err := s.publish(ctx); errors.Is(err, fleet.ErrNotLeader) {
			return err
		}
	}
}

// publish stores what waits, or leaves it for the next beat.
func (s *watch) publish(ctx context.Context) error {
	s.mu.Lock()
	waiting := slices.Clone(s.notices)
	upTo := s.firstNotice + len(waiting)
	s.mu.Unlock()
	if len(waiting) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	var stored []fleet.Event
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		stored = stored[:0]
		for _, ev := range waiting {
			if _, ok := tx.Hosts().Get(ev.EntityID); ok {
				tx.Emit(ev)
				stored = append(stored, ev)
			}
		}
		return nil
	})
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("events of hosts not stored yet", slog.Int("waiting", len(waiting)), slog.Any("error", err))
		}
		return err
	}
	s.mu.Lock()
	s.notices = s.notices[max(0, upTo-s.firstNotice):] // some may have been dropped meanwhile
	s.firstNotice = max(s.firstNotice, upTo)
	s.mu.Unlock()
	for _, ev := range stored {
		level, text := slog.LevelInfo, "host reachable again"
		switch ev.Type {
		case fleet.EventHostUnreachable:
			level, text = slog.LevelWarn, "host unreachable"
		case fleet.EventHostCertificate:
			level, text = slog.LevelWarn, "host shows another certificate than the registered one"
		case fleet.EventHostReturned:
			text = "host has come back and was compared"
		case fleet.EventHostFenced:
			level, text = slog.LevelWarn, "host takes no change from this server"
		case fleet.EventHostStoreAccepted:
			text = "host takes this state store instead of another"
		case fleet.EventHostPurged:
			text = "host purged of another fleet"
		}
		s.log.Log(ctx, level, text, slog.String("host_id", ev.EntityID), slog.String("evidence", ev.Reason.Evidence))
	}
	return nil
}
