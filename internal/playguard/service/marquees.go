package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// MaxMarquees bounds the marquees of a fleet.
const MaxMarquees = 1000

// AddMarquee reaches a host, makes the installation's place on it, pins its
// identity and registers it. Without HostKey nothing is done there: the error
// is a conflict of reason host_key_unconfirmed whose details carry host_key and
// fingerprint, for a person to confirm; scope is the address that showed it,
// which may be one of the jumps.
func (s *Service) AddMarquee(ctx context.Context, req NewMarquee) (Marquee, error) {
	row, err := newMarquee(ctx, s, req)
	if err != nil {
		return Marquee{}, err
	}
	registered := false
	defer func() {
		if !registered {
			s.Hosts.Drop(row.ID)
		}
	}()
	host := s.Hosts.Host(row)
	if err := enroll(ctx, s, host); err != nil {
		return Marquee{}, err
	}
	seen, err := pin(ctx, s, host, &row)
	if err != nil {
		return Marquee{}, err
	}
	row.Term.Epoch = seen.Epoch // of earlier records of this installation: the first pass goes beyond it
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		if err := unique(tx, row); err != nil {
			return err
		}
		row.CreatedAt, row.ReachSince = tx.Now(), tx.Now()
		row.Revision = tx.Revision() + 1
		records.TellMarquee(tx, &row, records.Note{
			Type: fleet.EventMarqueeAdded, Reason: who(ctx).reason(""), Payload: map[string]string{"name": row.Name, "address": row.Address},
		})
		return records.PutMarquee(tx, row)
	})
	if err != nil {
		return Marquee{}, err
	}
	registered = true
	s.Loop.Kick(row.ID)
	return s.Marquee(ctx, string(row.ID))
}

// enroll makes the installation's place on a host.
func enroll(ctx context.Context, s *Service, host *reach.Host) error {
	if err := s.Leads(); err != nil {
		return err
	}
	err := host.Enroll(ctx)
	var cut *sshx.Error
	if fleet.CodeOf(err) == fleet.CodeUnavailable && !errors.As(err, &cut) {
		// What was to be made there could not be; a look knows why.
		if look := observe.Conclude(host.Look(ctx), model.Identity{}); remedy(look.Reason()) != "" {
			return unseen(look)
		}
	}
	return explainReach(err)
}

// newMarquee checks a request and makes the record of it.
func newMarquee(ctx context.Context, s *Service, req NewMarquee) (m records.Marquee, err error) {
	if err := checkName("name", req.Name); err != nil {
		return m, err
	}
	if len(req.Jumps) > MaxJumps {
		return m, fleet.Invalid("jumps", fmt.Sprint(MaxJumps), "go a shorter way", "has %d hosts", len(req.Jumps))
	}
	if len(req.Key) == 0 && req.Agent == "" {
		return m, fleet.Invalid("key", "one of key and agent", "give a private key, or the socket of an agent on the server", "is missing")
	}
	if len(req.Key) > MaxKey {
		return m, fleet.Invalid("key", fmt.Sprintf("%d bytes", MaxKey), "give one private key in PEM form", "has %d bytes", len(req.Key))
	}
	if err := checkKey(req.Key); err != nil {
		return m, err
	}
	if req.Agent != "" && !path.IsAbs(req.Agent) {
		return m, fleet.Invalid("agent", "an absolute path", "give the path of the agent's socket on the server", "%.80q is not one", req.Agent)
	}
	if err := req.Policy.Validate(); err != nil {
		return m, fleet.Errorf(fleet.CodeInvalidArgument, "policy: %w", err).With(fleet.DetailScope, "policy")
	}
	if req.Root == "" {
		req.Root = model.DefaultRoot
	}
	if _, err := model.NewLayout(req.Root); err != nil {
		return m, err
	}
	m = records.Marquee{
		Marquee: model.Marquee{
			ID: model.MarqueeID(strings.ToLower(uid.New())), User: req.User, HostKey: strings.TrimSpace(req.HostKey), Root: req.Root,
			Admin: model.AdminActive, Reach: model.ReachOK,
		},
		Name: req.Name, Owner: who(ctx).owner, Agent: req.Agent, Policy: req.Policy,
	}
	if m.Address, err = address("address", req.Address); err != nil {
		return m, err
	}
	if req.User == "" {
		return m, fleet.Invalid("user", "a name", "say as whom to log in, as in user@host", "is missing")
	}
	for _, j := range req.Jumps {
		at, err := address("jumps", j.Address)
		if err != nil {
			return m, err
		}
		m.Jumps = append(m.Jumps, records.Hop{Address: at, User: j.User, HostKey: strings.TrimSpace(j.HostKey)})
	}
	if len(req.Key) > 0 {
		if m.KeySealed, err = s.Sealer.Seal(records.SealKindKey, string(m.ID), req.Key); err != nil {
			return m, err
		}
	}
	return m, s.Store.View(func(tx *state.ReadTx) error { return unique(tx, m) })
}

// checkKey refuses what is no private key that can be used as it is. Errors of
// the library may quote it.
func checkKey(pem []byte) error {
	if len(pem) == 0 {
		return nil
	}
	_, err := ssh.ParsePrivateKey(pem)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return fleet.Invalid("key", "a private key without passphrase", "make one for this use, or add it to an agent on the server and give that", "needs a passphrase")
	case err != nil:
		return fleet.Invalid("key", "a private key in PEM form", "give the private half, such as ~/.ssh/id_ed25519", "cannot be read")
	}
	return nil
}

// address adds the port of SSH where there is none.
func address(field, a string) (string, error) {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		host, port = strings.Trim(a, "[]"), "22"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || n == 0 || strings.ContainsAny(host, " /@\x00") {
		return "", fleet.Invalid(field, "host or host:port", "give the host's name or address", "%.80q is none", a)
	}
	return net.JoinHostPort(host, port), nil
}

// unique refuses a second record of a host.
func unique(tx state.Reader, m records.Marquee) error {
	n := 0
	for _, o := range records.Marquees.All(tx) {
		n++
		same := o.Identity.DaemonID != "" && o.Identity == m.Identity && o.Root == m.Root
		if o.ID != m.ID && (o.Name == m.Name || o.Address == m.Address && o.Root == m.Root || same) {
			return fleet.Errorf(fleet.CodeConflict, "marquee %q is registered already, at %s", o.Name, o.Address).
				With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "use that one, or remove it first")
		}
	}
	if n >= MaxMarquees {
		return fleet.Errorf(fleet.CodeConflict, "there are %d marquees", n).
			With(fleet.DetailLimit, fmt.Sprint(MaxMarquees)).With(fleet.DetailRemedy, "remove one that is not used: fuse marquee ls lists them")
	}
	return nil
}

// pin looks at a host and takes what it is into the record.
func pin(ctx context.Context, s *Service, host *reach.Host, m *records.Marquee) (observe.Host, error) {
	trip := host.Look(ctx)
	look := observe.Conclude(trip, model.Identity{})
	claimed, ok := look.Claimed()
	if !ok {
		return observe.Host{}, unseen(look)
	}
	if gap := claimed.Differs(claimed); gap != "" || claimed.Installation != m.Known(s.Installation) {
		return observe.Host{}, fleet.Errorf(fleet.CodeUnavailable, "the host does not say what it is: its %s is empty", gap).
			With(fleet.DetailRemedy, "every Linux host has /etc/machine-id; a Docker daemon has an id and a data root")
	}
	m.Identity = claimed
	seen, _ := observe.Conclude(trip, claimed).Host()
	return seen, nil
}

func unseen(look observe.Look) error {
	return fleet.Errorf(fleet.CodeUnavailable, "the marquee could not be seen: %s", look.Detail()).
		With(fleet.DetailReason, string(look.Reason())).With(fleet.DetailRemedy, remedy(look.Reason()))
}

// explainReach says what a person can do about an error of a connection.
func explainReach(err error) error {
	var key *sshx.HostKeyError
	var end *sshx.Error
	switch {
	case errors.As(err, &key) && key.Pinned == "":
		return fleet.Errorf(fleet.CodeConflict, "%s shows host key %s, and nobody has confirmed it", key.Address, key.Fingerprint).
			With(fleet.DetailReason, "host_key_unconfirmed").With("host_key", key.Shown).With("fingerprint", key.Fingerprint).
			With(fleet.DetailScope, key.Address).With(fleet.DetailRemedy, "compare it with what ssh-keygen -lf shows on the host, and give it as host key")
	case errors.As(err, &key):
		return fleet.Errorf(fleet.CodeConflict, "%w", key).With(fleet.DetailReason, "host_key_changed").
			With("host_key", key.Shown).With("fingerprint", key.Fingerprint).With(fleet.DetailScope, key.Address)
	case errors.As(err, &end):
		look := observe.Conclude(observe.Trip{Nonce: strings.Repeat("0", 32), Ending: end.Ending}, model.Identity{})
		return fleet.Errorf(fleet.CodeUnavailable, "%w", err).With(fleet.DetailReason, string(look.Reason())).With(fleet.DetailRemedy, remedy(look.Reason()))
	}
	return err
}

// Marquees lists marquees by id.
func (s *Service) Marquees(_ context.Context, o ListOptions) (out Page[Marquee], err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		counts := map[model.MarqueeID]int{}
		for _, p := range records.Playgrounds.All(tx) {
			counts[p.Marquee]++
		}
		out = page(records.Marquees.After(tx, o.After), o.Limit, func(m *records.Marquee) (Marquee, bool) {
			return marqueeView(s, m, counts[m.ID]), o.Marquee == "" || string(m.ID) == o.Marquee || m.Name == o.Marquee
		})
		return nil
	})
	return out, err
}

// Marquee returns one by id or name.
func (s *Service) Marquee(_ context.Context, id string) (out Marquee, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		m, err := findMarquee(tx, id)
		if err == nil {
			out = marqueeView(s, m, len(records.Of(tx, m.ID)))
		}
		return err
	})
	return out, err
}

func marqueeView(s *Service, m *records.Marquee, playgrounds int) Marquee {
	v := Marquee{
		ID: m.ID, Name: m.Name, Owner: m.Owner, Address: m.Address, User: m.User, HostKey: m.HostKey, Agent: m.Agent, HasKey: len(m.KeySealed) > 0,
		DefaultExpiry: m.DefaultExpiry, Root: m.Root, Policy: m.Policy, CreatedAt: m.CreatedAt, Admin: m.Admin, AdminWhy: m.AdminWhy, Reach: m.Reach, ReachSince: m.ReachSince,
		Misses: m.Streak.Count, Trouble: m.Trouble, Identity: m.Identity, Epoch: m.Term.Epoch, Revision: m.Revision,
		Playgrounds: playgrounds, NextLook: s.Loop.Due(m.ID),
	}
	for _, j := range m.Jumps {
		v.Jumps = append(v.Jumps, Hop(j))
	}
	if sight, ok := s.Loop.Sight(m.ID); ok {
		r := report(sight)
		v.LastLook = &r
		v.Orphans = orphans(sight)
	}
	return v
}

// changeMarquee changes a marquee's record and has it looked at.
func (s *Service) changeMarquee(ctx context.Context, id string, n records.Note, fn func(tx *state.Tx, m *records.Marquee) error) (Marquee, error) {
	var m records.Marquee
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		row, err := findMarquee(tx, id)
		if err != nil {
			return err
		}
		m = *row
		if err := fn(tx, &m); err != nil {
			return err
		}
		n.Reason = who(ctx).reason(n.Reason.Evidence)
		records.TellMarquee(tx, &m, n)
		return records.PutMarquee(tx, m)
	})
	if err != nil {
		return Marquee{}, err
	}
	s.Loop.Kick(m.ID)
	return s.Marquee(ctx, string(m.ID))
}

// QuarantineMarquee takes a marquee out of the loop until ReturnMarquee: it is
// not reached at all, and nothing on it is touched.
func (s *Service) QuarantineMarquee(ctx context.Context, id, why string) (Marquee, error) {
	if len(why) > 300 {
		return Marquee{}, fleet.Invalid("why", "300 bytes", "say it in fewer words", "has %d bytes", len(why))
	}
	m, err := s.changeMarquee(ctx, id, records.Note{Type: fleet.EventMarqueeQuarantined, Error: why}, func(_ *state.Tx, m *records.Marquee) error {
		m.Admin, m.AdminWhy = model.AdminDisabled, why
		return nil
	})
	if err == nil {
		s.Hosts.Drop(m.ID)
	}
	return m, err
}

// ReturnMarquee takes it back. One that the loop quarantined comes back with
// the next clean look.
func (s *Service) ReturnMarquee(ctx context.Context, id string, req ReturnMarquee) (Marquee, error) {
	var row records.Marquee
	if err := s.Store.View(func(tx *state.ReadTx) error {
		m, err := findMarquee(tx, id)
		if err == nil {
			row = *m
		}
		return err
	}); err != nil {
		return Marquee{}, err
	}
	if req.HostKey != "" {
		row.HostKey = strings.TrimSpace(req.HostKey)
	}
	var epoch uint64
	if req.AcceptIdentity {
		host := s.Hosts.Host(row)
		if err := enroll(ctx, s, host); err != nil {
			return Marquee{}, err
		}
		seen, err := pin(ctx, s, host, &row)
		if err != nil {
			return Marquee{}, err
		}
		epoch = seen.Epoch
	}
	s.Hosts.Drop(row.ID)
	return s.changeMarquee(ctx, string(row.ID), records.Note{Type: fleet.EventMarqueeReturned}, func(tx *state.Tx, m *records.Marquee) error {
		m.HostKey, m.Identity, m.Admin, m.AdminWhy = row.HostKey, row.Identity, model.AdminActive, ""
		if epoch > m.Term.Epoch { // records older than the host: a person says that they count
			m.Begin(m.Term.Term, epoch+1, tx.Revision()+1)
		}
		return nil
	})
}

// SetPolicy replaces what compose files may do on a marquee, for the next Up.
func (s *Service) SetPolicy(ctx context.Context, id string, p map[string]string) (Marquee, error) {
	policy := compose.Policy{}
	for danger, verdict := range p {
		policy[compose.Danger(danger)] = compose.Verdict(verdict)
	}
	if err := policy.Validate(); err != nil {
		return Marquee{}, fleet.Errorf(fleet.CodeInvalidArgument, "policy: %w", err).With(fleet.DetailScope, "policy")
	}
	return s.changeMarquee(ctx, id, records.Note{Type: fleet.EventMarqueeUpdated, Payload: map[string]any{"policy": policy}}, func(_ *state.Tx, m *records.Marquee) error {
		m.Policy = policy
		return nil
	})
}

// RemoveMarquee forgets a marquee. While playgrounds are on it that is a
// conflict, unless forget says to drop their records too. Nothing on the host
// is touched.
func (s *Service) RemoveMarquee(ctx context.Context, id string, forget bool) error {
	var gone model.MarqueeID
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		m, err := findMarquee(tx, id)
		if err != nil {
			return err
		}
		on := records.Of(tx, m.ID)
		if len(on) > 0 && !forget {
			return fleet.Errorf(fleet.CodeConflict, "%d playgrounds are on marquee %s", len(on), m.Name).With(fleet.DetailReason, "not_empty").
				With(fleet.DetailRemedy, "destroy them first; to drop the records and leave the host as it is, forget them")
		}
		for _, p := range on {
			records.Tell(tx, p, records.Note{Type: fleet.EventPlaygroundForgotten, Reason: who(ctx).reason("its marquee was removed")})
			if err := records.DeletePlayground(tx, p.ID); err != nil {
				return err
			}
		}
		gone = m.ID
		records.TellMarquee(tx, m, records.Note{Type: fleet.EventMarqueeRemoved, Reason: who(ctx).reason("")})
		return records.Marquees.Delete(tx, string(m.ID))
	})
	if err == nil {
		s.Loop.Kick(gone)
		s.Hosts.Drop(gone)
	}
	return err
}

// CheckMarquee looks at a marquee now. A clean look also returns one that the
// loop quarantined. That a point is not well is no error.
func (s *Service) CheckMarquee(ctx context.Context, id string) (Check, error) {
	m, err := s.Marquee(ctx, id)
	if err != nil {
		return Check{}, err
	}
	if m.Admin != model.AdminActive {
		return Check{}, fleet.Errorf(fleet.CodeConflict, "marquee %s is quarantined by a person: %s", m.Name, m.AdminWhy).
			With(fleet.DetailReason, "quarantined").With(fleet.DetailRemedy, "take it back first")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	sight, err := s.Loop.Check(ctx, m.ID)
	if err != nil {
		return Check{}, err
	}
	return checkOf(sight), nil
}
