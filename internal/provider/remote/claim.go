package remote

import (
	"context"
	"errors"
	"strconv"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/provider"
)

// Claim raises the fleet's mark on the host for the current term, unless this
// provider has done so already.
func (p *Provider) Claim(ctx context.Context) (provider.Claimed, error) {
	f, err := p.cfg.Fencer.Fence()
	if err != nil {
		return provider.Claimed{}, err
	}
	if c, ok := p.claimedNow(f); ok {
		return c, nil
	}
	return p.claim(ctx, f)
}

func (p *Provider) claimedNow(f provider.Fence) (provider.Claimed, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.claimed[f.FleetID]
	return c, c.Term == f.Term
}

func (p *Provider) forget(fleetID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claimed, fleetID)
}

// compare forgets a claim that the host does not hold any more: its disk was
// replaced, or another store was accepted there.
func (p *Provider) compare(fleetID string, markTerm int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.claimed[fleetID]; ok && c.Term != markTerm {
		delete(p.claimed, fleetID)
	}
}

// claim asks first without a proof; a host that has seen the fleet names the
// term that it wants one of. An operator's confirmation counts only for the
// mark that was refused for, and once for each term at a host: two servers
// that were both confirmed must not take the host from each other in turns.
func (p *Provider) claim(ctx context.Context, f provider.Fence) (provider.Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	c := provider.Claimed{Term: f.Term}
	req := &hostwirev1.ClaimRequest{Fence: wireFence(f)}
	err := p.sendClaim(ctx, req)
	prover, can := p.cfg.Fencer.(provider.Prover)
	if term, ok := markTerm(err); ok && can && errors.Is(err, hostwire.ErrNeedProof) {
		proof := prover.Proof(term)
		req.Proof = &hostwirev1.Proof{Term: term, Token: proof.Token, Revision: proof.Revision}
		err = p.sendClaim(ctx, req)
	}
	if term, ok := markTerm(err); ok && can && prover.Accepted() && errors.Is(err, fleet.ErrFenced) && p.acceptOnce(f) {
		req.Proof, req.AcceptTerm, c.Replaced = nil, term, term
		err = p.sendClaim(ctx, req)
	}
	if err != nil {
		return provider.Claimed{}, explained(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claimed[f.FleetID], p.taken[f.FleetID] = c, f.Term
	return c, nil
}

func (p *Provider) sendClaim(ctx context.Context, req *hostwirev1.ClaimRequest) error {
	_, err := p.host.Claim(ctx, connect.NewRequest(req))
	return callError(ctx, err)
}

// acceptOnce reports whether no claim of this term has worked out here yet.
func (p *Provider) acceptOnce(f provider.Fence) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken[f.FleetID] != f.Term
}

// markTerm is the term that a refused claim names.
func markTerm(err error) (int64, bool) {
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		return 0, false
	}
	term, perr := strconv.ParseInt(fe.Details[hostwire.DetailMarkTerm], 10, 64)
	return term, perr == nil && term > 0
}

// explained turns a request for a proof that cannot be given into a refusal.
func explained(err error) error {
	var fe *fleet.Error
	if !errors.Is(err, hostwire.ErrNeedProof) || !errors.As(err, &fe) {
		return err
	}
	e := fleet.Errorf(fleet.CodeConflict, "%w: it does not remember its earlier terms", fleet.ErrFenced)
	e.Details = fe.Details
	return e
}

// change runs one fenced call. The term is claimed first if this provider has
// not done so, and once more if the host does not know of it, as after its
// disk was replaced; the refused call had no effect.
func (p *Provider) change(ctx context.Context, call func(*hostwirev1.Fence) error) error {
	for try := 0; ; try++ {
		f, err := p.cfg.Fencer.Fence()
		if err != nil {
			return err
		}
		if _, claimed := p.claimedNow(f); !claimed {
			if _, err := p.claim(ctx, f); err != nil {
				return err
			}
			// The claim took time; the call wants a fence of now.
			if f, err = p.cfg.Fencer.Fence(); err != nil {
				return err
			}
		}
		err = call(wireFence(f))
		if errors.Is(err, fleet.ErrStaleTerm) || errors.Is(err, hostwire.ErrUnclaimed) {
			p.forget(f.FleetID)
		}
		if err == nil || try > 0 || !errors.Is(err, hostwire.ErrUnclaimed) {
			return err
		}
	}
}

// PurgeFleet destroys the VMs of another fleet; see provider.Purger.
func (p *Provider) PurgeFleet(ctx context.Context, fleetID string, force bool) (destroyed, failed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ChangeTimeout)
	defer cancel()
	err = p.change(ctx, func(f *hostwirev1.Fence) error {
		resp, err := p.host.PurgeFleet(ctx, connect.NewRequest(&hostwirev1.PurgeFleetRequest{Fence: f, FleetId: fleetID, Force: force}))
		if err != nil {
			return callError(ctx, err)
		}
		destroyed, failed = int(resp.Msg.GetDestroyed()), int(resp.Msg.GetFailed())
		return nil
	})
	return destroyed, failed, err
}
