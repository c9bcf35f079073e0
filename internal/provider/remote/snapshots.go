package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/uid"
)

var (
	_ provider.Snapshotter  = (*Provider)(nil)
	_ provider.Checkpointer = (*environment)(nil)
	_ provider.Pauser       = (*environment)(nil)
)

// snapshotCalls are the calls about snapshots that concern no one VM.
type snapshotCalls struct{ p *Provider }

// snapshotError is callError; a host that cannot says so in the words of what
// was asked.
func snapshotError(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	err = callError(ctx, err)
	var fe *fleet.Error
	if !errors.As(err, &fe) || fe.Code != fleet.CodeUnimplemented && !errors.Is(err, hostwire.ErrUnsupported) {
		return err
	}
	out := fleet.Wrap(fleet.CodeUnimplemented, errors.Join(fleet.ErrSnapshotUnsupported, err), fmt.Sprintf("the host cannot %s: %s", what, fe.Message))
	for k, v := range fe.Details {
		out = out.With(k, v)
	}
	return out
}

// answered reads a stream until its last message. next tells whether the
// message is that.
func answered[T any](stream *connect.ServerStreamForClient[T], next func(*T) bool) error {
	defer func() { _ = stream.Close() }() // answered or given up by then
	for stream.Receive() {
		if next(stream.Msg()) {
			return nil
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return errors.New("the stream ended without a result")
}

func progressFromWire(w *hostwirev1.SnapshotProgress, tell func(provider.SnapshotProgress)) {
	if tell != nil && w != nil {
		tell(provider.SnapshotProgress{Phase: w.GetPhase(), Done: w.GetDoneBytes(), Total: w.GetTotalBytes(), Rate: w.GetBytesPerSecond()})
	}
}

// follow tells how far the host is with a VM's memory and disk, until the result
// is called. A host that does not know the call tells nothing.
func (c snapshotCalls) follow(ctx context.Context, fence *hostwirev1.Fence, ref *hostwirev1.Ref, tell func(provider.SnapshotProgress)) (end func()) {
	if tell == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		stream, err := c.p.snapshots.FollowVM(ctx, connect.NewRequest(&hostwirev1.FollowVMRequest{Fence: fence, Ref: ref}))
		if err == nil {
			_ = answered(stream, func(m *hostwirev1.FollowVMResponse) bool { // the work itself has an answer
				progressFromWire(m.GetProgress(), tell)
				return false
			})
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// TakeSnapshot implements provider.Checkpointer.
func (e *environment) TakeSnapshot(ctx context.Context, req provider.TakeRequest) (out fleet.Artifact, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	wire := &hostwirev1.TakeSnapshotRequest{Ref: e.call(e.ref.OpID), SnapshotId: req.SnapshotID, Live: req.Live, Volatile: req.Volatile}
	err = e.p.change(ctx, func(f *hostwirev1.Fence) error {
		wire.Fence = f
		stream, err := e.p.snapshots.TakeSnapshot(ctx, connect.NewRequest(wire))
		if err == nil {
			err = answered(stream, func(m *hostwirev1.TakeSnapshotResponse) bool {
				progressFromWire(m.GetProgress(), req.Progress)
				if m.GetSnapshot() != nil {
					out = hostwire.ArtifactFromWire(m.GetSnapshot())
				}
				return m.GetSnapshot() != nil
			})
		}
		return snapshotError(ctx, "take snapshots", err)
	})
	return out, err
}

// RestoreSnapshot implements provider.Checkpointer.
func (e *environment) RestoreSnapshot(ctx context.Context, req provider.RestoreRequest) (out provider.Resumed, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	wire := &hostwirev1.RestoreVMRequest{Ref: e.call(e.ref.OpID), SnapshotId: req.SnapshotID, Digest: req.Digest, Kind: string(req.Kind)}
	err = e.p.change(ctx, func(f *hostwirev1.Fence) error {
		wire.Fence = f
		stream, err := e.p.snapshots.RestoreVM(ctx, connect.NewRequest(wire))
		if err == nil {
			err = answered(stream, func(m *hostwirev1.RestoreVMResponse) bool {
				progressFromWire(m.GetProgress(), req.Progress)
				if m.GetResult() != nil {
					out.Boot, out.Certificate = hostwire.ResumedFromWire(m.GetResult())
				}
				return m.GetResult() != nil
			})
		}
		return snapshotError(ctx, "restore snapshots", err)
	})
	return out, err
}

// Pause implements provider.Pauser.
func (e *environment) Pause(ctx context.Context, tell func(provider.SnapshotProgress)) (kept int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	wire := &hostwirev1.PauseVMRequest{Ref: e.call(e.ref.OpID)}
	err = e.p.change(ctx, func(f *hostwirev1.Fence) error {
		wire.Fence = f
		defer snapshotCalls{e.p}.follow(ctx, f, wire.Ref, tell)()
		resp, err := e.p.snapshots.PauseVM(ctx, connect.NewRequest(wire))
		if err == nil {
			kept = resp.Msg.GetKeptBytes()
		}
		return snapshotError(ctx, "pause", err)
	})
	return kept, err
}

// Resume implements provider.Pauser.
func (e *environment) Resume(ctx context.Context, tell func(provider.SnapshotProgress)) (out provider.Resumed, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	wire := &hostwirev1.ResumeVMRequest{Ref: e.call(e.ref.OpID)}
	err = e.p.change(ctx, func(f *hostwirev1.Fence) error {
		wire.Fence = f
		defer snapshotCalls{e.p}.follow(ctx, f, wire.Ref, tell)()
		resp, err := e.p.snapshots.ResumeVM(ctx, connect.NewRequest(wire))
		if err == nil {
			out.Boot, out.Certificate = hostwire.ResumedFromWire(resp.Msg.GetResult())
		}
		return snapshotError(ctx, "resume", err)
	})
	return out, err
}

// CreateFromSnapshot implements provider.Snapshotter.
func (c snapshotCalls) CreateFromSnapshot(ctx context.Context, req provider.CreateRequest, seed provider.Seed) (out provider.Created, err error) {
	p := c.p
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ChangeTimeout)
	defer cancel()
	err = p.change(ctx, func(f *hostwirev1.Fence) error {
		create := createToWire(f, req)
		defer c.follow(ctx, f, create.Ref, seed.Tell)()
		stream, err := p.snapshots.CreateVMFromSnapshot(ctx, connect.NewRequest(&hostwirev1.CreateVMFromSnapshotRequest{
			Create: create, SnapshotId: seed.SnapshotID, Digest: seed.Digest, Live: seed.Live, Files: hostwire.FilesToWire(seed.Files),
		}))
		if err == nil {
			err = answered(stream, func(m *hostwirev1.CreateVMFromSnapshotResponse) bool {
				if m.GetStep() != "" && req.Progress != nil {
					req.Progress(m.GetStep())
				}
				if m.GetResult() != nil {
					out = created(p, req, m.GetResult())
				}
				return m.GetResult() != nil
			})
		}
		return snapshotError(ctx, "make a machine from a snapshot", err)
	})
	return out, err
}

// Snapshots implements provider.Snapshotter.
func (c snapshotCalls) Snapshots(ctx context.Context) (provider.SnapshotListing, error) {
	p := c.p
	f, err := p.cfg.Fencer.Fence()
	if err != nil {
		return provider.SnapshotListing{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	resp, err := p.snapshots.ListSnapshots(ctx, connect.NewRequest(&hostwirev1.ListSnapshotsRequest{FleetId: f.FleetID}))
	if err != nil {
		return provider.SnapshotListing{}, snapshotError(ctx, "keep snapshots", err)
	}
	m := resp.Msg
	l := provider.SnapshotListing{Complete: m.GetComplete(), Reason: m.GetReason(), Foreign: int(m.GetForeign())}
	for _, w := range m.GetSnapshots() {
		l.Snapshots = append(l.Snapshots, hostwire.ArtifactFromWire(w))
	}
	return l, nil
}

// DeleteSnapshot implements provider.Snapshotter.
func (c snapshotCalls) DeleteSnapshot(ctx context.Context, id, opID string) error {
	p := c.p
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ChangeTimeout)
	defer cancel()
	if opID == "" {
		opID = uid.New()
	}
	return p.change(ctx, func(f *hostwirev1.Fence) error {
		_, err := p.snapshots.DeleteSnapshot(ctx, connect.NewRequest(&hostwirev1.DeleteSnapshotRequest{Fence: f, SnapshotId: id, OperationId: opID}))
		return snapshotError(ctx, "delete snapshots", err)
	})
}
