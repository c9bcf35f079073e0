package hosts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

const ruleCertificate = "certificate_changed"

// Label sets some labels of a host and removes others. One that is to be
// removed has to be there.
func (s *Service) Label(ctx context.Context, id string, set map[string]string, remove []string, actor string) error {
	if err := s.cfg.Admit(ctx, actor, "host_label", map[string]string{"id": id}); err != nil {
		return err
	}
	if len(set)+len(remove) == 0 {
		return fleet.Invalid("set", "at least one label", "name what to set or remove", "and remove are empty")
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(id)
		if !ok {
			return notFound(id)
		}
		labels := maps.Clone(h.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		for _, k := range remove {
			if _, there := labels[k]; !there {
				known := slices.Sorted(maps.Keys(labels))
				return fleet.Invalid("remove", "labels that the host has: "+strings.Join(known, ", "), "take one of those", "%.80q is no label of host %s", k, id)
			}
			delete(labels, k)
		}
		maps.Copy(labels, set)
		if err := (&RegisterRequest{Labels: labels}).checkLabels(); err != nil {
			return err
		}
		if maps.Equal(labels, h.Labels) {
			return nil
		}
		row := *h
		row.Labels, row.UpdatedAt = labels, tx.Now()
		why := fleet.Reason{Actor: actor, Rule: fleet.RuleRequested, Evidence: fmt.Sprintf("set %v, removed %v", set, remove)}
		tx.Emit(hostEvent(id, fleet.EventHostLabelled, why, map[string]any{"labels": labels}))
		return tx.PutHost(row)
	})
	return err
}

// Repin accepts another certificate of a host: the one with that fingerprint,
// or with "" the one whose holder proves that it has the host's token. Either
// way it has to be the registered machine.
func (s *Service) Repin(ctx context.Context, id, fingerprint, actor string) error {
	if err := s.cfg.Admit(ctx, actor, "host_repin", map[string]string{"id": id}); err != nil {
		return err
	}
	host, err := s.get(id)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(host.URL, "https://") {
		return fleet.Errorf(fleet.CodeConflict, "host %s is reached without a certificate, at %s", id, host.URL).With(fleet.DetailHostID, id)
	}
	req := RegisterRequest{ID: id, URL: host.URL, CertSHA256: fingerprint}
	if err := req.checkCert(); err != nil {
		return err
	}
	if req.Token, err = s.token(host); err != nil {
		return err
	}
	how := "as the operator gave it"
	if fingerprint == "" {
		how = "its holder proved that it has the host's token"
	}
	now, err := s.probe(ctx, req)
	switch {
	case err != nil:
		return err
	case now.err != nil:
		return &ProbeError{fleet.Wrap(fleet.CodeUnavailable, now.err, fmt.Sprintf("host %s cannot be met with that certificate: %s", id, reasonOf(now.err))).
			With(fleet.DetailHostID, id).With(fleet.DetailRemedy, "compare it with what fuse hostd prints on that host")}
	}
	if err := differs(host.Facts, now.facts); err != nil {
		return fleet.Errorf(fleet.CodeConflict, "host %s keeps its certificate: %w", id, err).
			With(fleet.DetailHostID, id).With(fleet.DetailRemedy, "start the host agent with the data directory that the host was registered with")
	}
	pin := req.CertSHA256
	if now.cert != "" {
		pin = now.cert
	}
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(id)
		switch {
		case !ok:
			return notFound(id)
		case h.URL != host.URL || h.CertSHA256 != host.CertSHA256:
			return fleet.Errorf(fleet.CodeConflict, "host %s was registered anew meanwhile", id).With(fleet.DetailHostID, id)
		case h.CertSHA256 == pin:
			return nil
		}
		row := *h
		row.CertSHA256, row.UpdatedAt = pin, tx.Now()
		tx.Emit(repinned(id, h.CertSHA256, pin, fleet.Reason{Actor: actor, Rule: fleet.RuleRequested, Evidence: how}))
		return tx.PutHost(row)
	})
	return err
}

func repinned(id, before, after string, why fleet.Reason) fleet.Event {
	why.Evidence = fmt.Sprintf("certificate %s, was %s: %s", after, before, why.Evidence)
	return hostEvent(id, fleet.EventHostRepinned, why, map[string]string{"cert_sha256": after, "before": before})
}

// pin meets a host that was registered while nobody answered, and pins what it
// shows.
func (s *base) pin(ctx context.Context, host fleet.Host) error {
	if host.CertSHA256 != "" || host.Facts.RegistryID != "" {
		return nil
	}
	token, err := s.token(host)
	if err != nil || !s.meets(host.URL, token) {
		return err
	}
	cert, err := s.cfg.Contact(ctx, host.URL, token)
	if err != nil || cert == "" {
		return err
	}
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(host.ID)
		if !ok || h.URL != host.URL || h.CertSHA256 != "" {
			return nil
		}
		row := *h
		row.CertSHA256, row.UpdatedAt = cert, tx.Now()
		return tx.PutHost(row)
	})
	return err
}

// strangeCertificate is the fingerprint in the refusal of a certificate; "" in
// any other error.
func strangeCertificate(err error) string {
	var fe *fleet.Error
	if !errors.As(err, &fe) || fe.Details[fleet.DetailReason] != fleet.ReasonCertificate {
		return ""
	}
	return fe.Details[fleet.DetailShown]
}

// Metrics returns what a host's agent exports, in the Prometheus text format.
func (s *Service) Metrics(ctx context.Context, id string) ([]byte, error) {
	p, err := s.Provider(id)
	if err != nil {
		return nil, err
	}
	reader, ok := p.(provider.MetricsReader)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "host %s exports no figures", id).With(fleet.DetailHostID, id)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	text, err := reader.Metrics(ctx)
	if err != nil {
		return nil, fmt.Errorf("figures of host %s: %w", id, err)
	}
	return text, nil
}

// Forgot is what ended with a host that was given up.
type Forgot struct {
	Lost  int
	Names []string // the first of them
}

// Forget removes a host that will not come back, and ends what was on it as
// lost, all in one step. It is asked once more before, and kept if it answers:
// the last look may be from before it came back, or there was none yet. Should
// it come back after all, it has to be registered, and takes nothing new before what it
// runs was compared with what was decided.
func (s *Service) Forget(ctx context.Context, id, actor string) (Forgot, error) {
	if err := s.cfg.Admit(ctx, actor, "host_forget", map[string]string{"id": id}); err != nil {
		return Forgot{}, err
	}
	host, err := s.get(id)
	if err != nil {
		return Forgot{}, err
	}
	s.lookOnce(ctx, host)
	var lost []*fleet.VM
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(id)
		if !ok {
			return notFound(id)
		}
		if err := s.refuseAnswering(id); err != nil {
			return err
		}
		why := fleet.Reason{Actor: actor, Rule: fleet.RuleHostLost, Evidence: s.lostBecause(id)}
		var err error
		if lost, err = ending.Lost(tx, id, why); err != nil {
			return err
		}
		if err := remember(tx, fleet.ForgottenHost{
			ID: id, RegistryID: h.Facts.RegistryID, MachineID: h.Facts.MachineID, Actor: actor, At: tx.Now(), Lost: len(lost),
		}); err != nil {
			return err
		}
		if err := tx.DeleteHost(id); err != nil {
			return err
		}
		tx.Emit(hostEvent(id, fleet.EventHostForgotten, why, map[string]int{"lost": len(lost)}))
		return nil
	})
	if err != nil {
		return Forgot{}, err
	}
	out := Forgot{Lost: len(lost)}
	uids := make([]string, 0, len(lost))
	for _, vm := range lost {
		uids = append(uids, vm.UID)
		if len(out.Names) < maxNamed {
			out.Names = append(out.Names, vm.ID)
		}
	}
	s.log.Warn("host given up for lost", slog.String("host_id", id), slog.String("actor", actor), slog.Int("lost", out.Lost))
	s.mu.Lock()
	delete(s.sightings, id)
	s.mu.Unlock()
	if s.cfg.Lost != nil {
		s.cfg.Lost(uids)
	}
	return out, s.pool.drop(id)
}

// lookOnce refreshes what is known of a host, within the time of a probe.
func (s *Service) lookOnce(ctx context.Context, host fleet.Host) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	s.Look(ctx, host)
}

// refuseAnswering keeps a host that answers: it can be emptied.
func (s *base) refuseAnswering(id string) error {
	n := s.Sighting(id)
	if n.LastSeen.IsZero() || n.Misses > 0 || n.Fenced != "" {
		return nil
	}
	return fleet.Errorf(fleet.CodeConflict, "host %s answers: it was last seen at %s", id, n.LastSeen.UTC().Format("15:04:05")).
		With(fleet.DetailHostID, id).With(fleet.DetailRemedy, "empty it with 'fuse host drain "+id+"'; or stop its agent, and forget it once a look has missed it")
}

func (s *base) lostBecause(id string) string {
	n := s.Sighting(id)
	switch {
	case n.Fenced != "":
		return "host " + id + " was forgotten; it takes no change from this server: " + n.Fenced
	case n.LastSeen.IsZero():
		return "host " + id + " was forgotten; this server has never seen it"
	}
	return fmt.Sprintf("host %s was forgotten; last seen at %s, %s missed since: %s", id, n.LastSeen.UTC().Format("2006-01-02T15:04:05Z"), looks(n.Misses), n.Reason)
}
