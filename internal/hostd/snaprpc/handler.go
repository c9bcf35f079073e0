package snaprpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/raise"
	"github.com/fusevm/fuse/internal/hostd/snapstore"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// handler translates between hostwire and Service; it decides nothing.
type handler struct{ s *Service }

var _ hostwirev1connect.SnapshotsHandler = handler{}

func (h handler) TakeSnapshot(ctx context.Context, req *connect.Request[hostwirev1.TakeSnapshotRequest], out *connect.ServerStream[hostwirev1.TakeSnapshotResponse]) error {
	r, err := h.s.Take(ctx, req.Msg, func(p *hostwirev1.SnapshotProgress) error {
		return out.Send(&hostwirev1.TakeSnapshotResponse{Kind: &hostwirev1.TakeSnapshotResponse_Progress{Progress: p}})
	})
	if err != nil {
		return err
	}
	return out.Send(&hostwirev1.TakeSnapshotResponse{Kind: &hostwirev1.TakeSnapshotResponse_Snapshot{Snapshot: hostwire.ArtifactToWire(artifact(r, nil))}})
}

// artifact renders a capture for the control plane.
func artifact(r snapstore.Record, users []string) fleet.Artifact {
	a := fleet.Artifact{ID: r.ID, VMID: r.VMID, UID: r.UID, Users: users, Bad: r.Bad, CreatedAt: r.At}
	if i := r.Info; i != nil {
		a.Kind, a.Digest, a.SizeBytes, a.Machine, a.Timings = i.Kind, i.Digest, i.SizeBytes, i.Machine, i.Timings.SnapshotTimings
	}
	return a
}

func (h handler) RestoreVM(ctx context.Context, req *connect.Request[hostwirev1.RestoreVMRequest], out *connect.ServerStream[hostwirev1.RestoreVMResponse]) error {
	o, err := h.s.Restore(ctx, req.Msg, func(p *hostwirev1.SnapshotProgress) error {
		return out.Send(&hostwirev1.RestoreVMResponse{Kind: &hostwirev1.RestoreVMResponse_Progress{Progress: p}})
	})
	if err != nil {
		return err
	}
	return out.Send(&hostwirev1.RestoreVMResponse{Kind: &hostwirev1.RestoreVMResponse_Result{Result: hostwire.ResumedToWire(o.Boot, o.Certificate)}})
}

func (h handler) CreateVMFromSnapshot(ctx context.Context, req *connect.Request[hostwirev1.CreateVMFromSnapshotRequest], out *connect.ServerStream[hostwirev1.CreateVMFromSnapshotResponse]) error {
	m := req.Msg
	if _, err := h.s.snapper(); err != nil {
		return err
	}
	if m.GetSnapshotId() == "" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the create names no snapshot")
	}
	size := 0
	for _, f := range m.GetFiles() {
		size += len(f.GetData())
	}
	if size > hostwire.MaxSeedFiles {
		return fleet.Errorf(fleet.CodePayloadTooLarge, "the files that go along are %d bytes", size).
			With(fleet.DetailLimit, "4 MiB in all")
	}
	_, t, leave := h.s.told(ctx, vmKey(m.GetCreate().GetFence(), m.GetCreate().GetRef()))
	defer leave()
	res, err := h.s.Host.CreateFrom(ctx, m.GetCreate(), raise.Source{
		FleetID: m.GetCreate().GetFence().GetFleetId(), SnapshotID: m.GetSnapshotId(), Digest: m.GetDigest(), Live: m.GetLive(),
		Files: hostwire.FilesFromWire(m.GetFiles()), Tell: t.progress,
	}, func(step string) error {
		return out.Send(&hostwirev1.CreateVMFromSnapshotResponse{Kind: &hostwirev1.CreateVMFromSnapshotResponse_Step{Step: step}})
	})
	if err != nil {
		return err
	}
	return out.Send(&hostwirev1.CreateVMFromSnapshotResponse{Kind: &hostwirev1.CreateVMFromSnapshotResponse_Result{Result: res}})
}

func (h handler) PauseVM(ctx context.Context, req *connect.Request[hostwirev1.PauseVMRequest]) (*connect.Response[hostwirev1.PauseVMResponse], error) {
	o, err := h.s.Pause(ctx, req.Msg.GetFence(), req.Msg.GetRef())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.PauseVMResponse{KeptBytes: o.Bytes}), nil
}

func (h handler) ResumeVM(ctx context.Context, req *connect.Request[hostwirev1.ResumeVMRequest]) (*connect.Response[hostwirev1.ResumeVMResponse], error) {
	o, err := h.s.Resume(ctx, req.Msg.GetFence(), req.Msg.GetRef())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.ResumeVMResponse{Result: hostwire.ResumedToWire(o.Boot, o.Certificate)}), nil
}

// vmKey is what work with a VM is known by: to its own fleet alone, and never as a
// snapshot, whatever uid a caller says.
func vmKey(f *hostwirev1.Fence, ref *hostwirev1.Ref) string {
	return f.GetFleetId() + " " + ref.GetUid()
}

func (h handler) FollowVM(ctx context.Context, req *connect.Request[hostwirev1.FollowVMRequest], out *connect.ServerStream[hostwirev1.FollowVMResponse]) error {
	return h.s.Follow(ctx, req.Msg.GetFence(), req.Msg.GetRef(), func(p *hostwirev1.SnapshotProgress) error {
		return out.Send(&hostwirev1.FollowVMResponse{Progress: p})
	})
}

func (h handler) ListSnapshots(_ context.Context, req *connect.Request[hostwirev1.ListSnapshotsRequest]) (*connect.Response[hostwirev1.ListSnapshotsResponse], error) {
	if req.Msg.GetFleetId() == "" {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "the listing names no fleet")
	}
	if _, err := h.s.snapper(); err != nil {
		return nil, err
	}
	res := &hostwirev1.ListSnapshotsResponse{}
	if res.Complete, res.Reason = h.s.Host.Complete(); !res.Complete {
		return connect.NewResponse(res), nil
	}
	list, users, foreign := h.s.Store.List(req.Msg.GetFleetId())
	res.Foreign = int64(foreign)
	for _, r := range list {
		res.Snapshots = append(res.Snapshots, hostwire.ArtifactToWire(artifact(r, users[r.ID])))
	}
	return connect.NewResponse(res), nil
}

func (h handler) DeleteSnapshot(ctx context.Context, req *connect.Request[hostwirev1.DeleteSnapshotRequest]) (*connect.Response[hostwirev1.DeleteSnapshotResponse], error) {
	if err := h.s.Delete(ctx, req.Msg.GetFence(), req.Msg.GetSnapshotId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.DeleteSnapshotResponse{}), nil
}
