package sim

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
	"github.com/fusevm/fuse/internal/provider"
)

// What follows keeps a promise badly on purpose.

// credulous takes a host that did not answer, or not completely, for an empty
// one.
type credulous struct{ converge.Looker }

// Look implements converge.Looker.
func (c credulous) Look(ctx context.Context, host fleet.Host) fleet.Observation {
	obs := c.Looker.Look(ctx, host)
	if obs.Quality() == fleet.Complete {
		return obs
	}
	return fleet.SeenComplete(lookOf(obs), nil, nil, 0)
}

func lookOf(o fleet.Observation) fleet.Look {
	return fleet.Look{HostID: o.HostID, ID: o.ID, Revision: o.Revision, At: o.At, Took: o.Took}
}

// nostalgic tells of each host what it looked like a few looks ago, as if it
// were now.
type nostalgic struct {
	converge.Looker
	mu   sync.Mutex
	seen map[string][]fleet.Observation
}

// Look implements converge.Looker.
func (n *nostalgic) Look(ctx context.Context, host fleet.Host) fleet.Observation {
	obs := n.Looker.Look(ctx, host)
	n.mu.Lock()
	defer n.mu.Unlock()
	if obs.Quality() == fleet.Complete {
		n.seen[host.ID] = append(n.seen[host.ID], obs)
	}
	old := n.seen[host.ID]
	if obs.Quality() != fleet.Complete || len(old) < 4 {
		return obs
	}
	vms, _ := old[len(old)-4].VMs()
	return fleet.SeenComplete(lookOf(obs), vms, nil, 0)
}

// lazy says that it has destroyed and has not.
type lazy struct{ provider.Provider }

// Destroy implements provider.Provider.
func (lazy) Destroy(context.Context, provider.Ref) error { return nil }

// Claim implements provider.Claimer.
func (l lazy) Claim(ctx context.Context) (provider.Claimed, error) {
	return l.Provider.(provider.Claimer).Claim(ctx) //nolint:forcetypeassert // the remote provider is one
}

// Capacity implements provider.CapacityProber.
func (l lazy) Capacity(ctx context.Context) (fleet.HostCapacity, fleet.HostFacts, error) {
	return l.Provider.(provider.CapacityProber).Capacity(ctx) //nolint:forcetypeassert // as above
}

// claimed remembers who leads, for hosts that obey all.
func (h *host) claimed(body []byte) {
	var m hostwirev1.ClaimRequest
	if proto.Unmarshal(body, &m) == nil {
		h.mu.Lock()
		h.mark = m.GetFence()
		h.mu.Unlock()
	}
}

// asLeader makes an order look as if the newest leader had given it.
func (h *host) asLeader(path string, body []byte) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	var m hostwirev1.DestroyVMRequest
	if h.mark == nil || path != hostwirev1connect.VMDestroyVMProcedure || proto.Unmarshal(body, &m) != nil {
		return body
	}
	m.Fence = h.mark
	if forged, err := proto.Marshal(&m); err == nil {
		return forged
	}
	return body
}
