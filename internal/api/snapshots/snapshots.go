// Package snapshots holds the routes of snapshots.
package snapshots

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/state"
)

// Service is what the routes serve: snapshots.Service.
type Service interface {
	Take(ctx context.Context, req snapshots.TakeRequest) (*fleet.Snapshot, error)
	Restore(ctx context.Context, id, actor string, tell func(provider.SnapshotProgress)) (*fleet.VM, error)
	Remove(ctx context.Context, id, actor string) error
	Records
}

// Records is how they are read.
type Records interface {
	Get(id string, sees func(owner string) bool) (*fleet.Snapshot, error)
	List(f snapshots.Filter, sees func(owner string) bool, after string, limit int) (page []*fleet.Snapshot, next string, err error)
	Resolve(tenant, layerKey, arch string) (*fleet.Snapshot, error)
	Progress(id string) (provider.SnapshotProgress, bool)
}

type routes struct {
	s      Service
	keeper web.Keeper
}

// Routes are the routes of snapshots.
func Routes(s Service, keeper web.Keeper) []web.Route {
	r := routes{s, keeper}
	return []web.Route{
		{Method: http.MethodPost, Pattern: "/v1/environments/{id}/snapshots", BodyLimit: web.BodyLimit, Slow: true, Handle: r.take},
		{Method: http.MethodGet, Pattern: "/v1/snapshots", Handle: r.list},
		{Method: http.MethodGet, Pattern: "/v1/snapshots/resolve", Handle: r.resolve},
		{Method: http.MethodGet, Pattern: "/v1/snapshots/{id}", Handle: r.get},
		{Method: http.MethodDelete, Pattern: "/v1/snapshots/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: r.remove},
		{Method: http.MethodPost, Pattern: "/v1/snapshots/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: r.act},
	}
}

// scope is where the caller's layers are filed: its key's id, and "" for the
// master token (semantics 39). It never comes from the request.
func scope(r *web.Request) string { return r.Principal().KeyID }

func (s routes) take(w http.ResponseWriter, r *web.Request) error {
	var body gen.CreateSnapshot
	if len(r.Payload) > 0 {
		if err := web.Decode(w, r, &body); err != nil {
			return err
		}
	}
	if body.RetentionSeconds < 0 || body.RetentionSeconds > int64(snapshots.MaxRetention/time.Second) {
		return fleet.Invalid("retention_seconds", "0 to "+strconv.FormatInt(int64(snapshots.MaxRetention/time.Second), 10), "leave it out for the server's", "is %d", body.RetentionSeconds)
	}
	req := snapshots.TakeRequest{
		VMID: r.Param, Actor: r.Principal().Actor(), Comment: body.Comment, Mode: fleet.SnapshotMode(body.Mode), Live: body.Live,
		Retention: time.Duration(body.RetentionSeconds) * time.Second, Metadata: body.Metadata, LayerKey: body.LayerKey, TenantID: scope(r),
	}
	if body.ExportRef != "" {
		req.Exports = []fleet.SnapshotExport{{Destination: body.ExportRef, Status: fleet.SnapshotExportStatus(body.ExportStatus)}}
	}
	var snap *fleet.Snapshot
	answer, err := web.Once(w, r, s.keeper, idempotency.Refuse, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		if snap, err = s.s.Take(ctx, req); err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: http.StatusCreated, ResourceID: snap.SnapshotID}, nil
	})
	if err == nil && answer.Replayed {
		snap, err = s.s.Get(answer.ResourceID, r.Principal().Sees)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("snapshots", snap.SnapshotID))
	web.WriteJSON(w, http.StatusCreated, s.shown(snap))
	return nil
}

func (s routes) list(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	after, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	page, next, err := s.s.List(snapshots.Filter{
		VMID: q.Get("vm_id"), TaskID: q.Get("task_id"), TenantID: q.Get("tenant_id"), State: fleet.SnapshotState(q.Get("state")),
		Mode: fleet.SnapshotMode(q.Get("mode")), Name: q.Get("name"), LayerKey: q.Get("layer_key"), Arch: fleet.NormalizeArch(q.Get("arch")),
	}, r.Principal().Sees, after, web.PageLimit(q))
	if err != nil {
		return err
	}
	out := gen.SnapshotList{Snapshots: make([]gen.Snapshot, 0, len(page))}
	for _, snap := range page {
		out.Snapshots = append(out.Snapshots, s.shown(snap))
	}
	if next != "" {
		out.NextCursor = web.EncodeCursor(next)
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) resolve(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	key, arch := q.Get("layer_key"), fleet.NormalizeArch(q.Get("arch"))
	for _, f := range [][2]string{{"layer_key", key}, {"arch", arch}} {
		if f[1] == "" {
			return fleet.Invalid(f[0], "a value", "name the layer and its architecture", "is missing")
		}
	}
	found, err := s.s.Resolve(scope(r), key, arch)
	if err != nil {
		return err
	}
	out := gen.ResolvedLayer{Found: found != nil}
	if found != nil {
		snap := s.shown(found)
		out.Snapshot = &snap
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) get(w http.ResponseWriter, r *web.Request) error {
	snap, err := s.s.Get(r.Param, r.Principal().Sees)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, s.shown(snap))
	return nil
}

func (s routes) remove(w http.ResponseWriter, r *web.Request) error {
	_, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.s.Remove(ctx, r.Param, r.Principal().Actor())
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s routes) act(w http.ResponseWriter, r *web.Request) error {
	return web.Dispatch(map[string]web.Action{"restore": {BodyLimit: web.BodyLimit, Handle: s.restore}}, w, r)
}

func (s routes) restore(w http.ResponseWriter, r *web.Request) error {
	_, err := web.Once(w, r, s.keeper, idempotency.Refuse, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		_, err := s.s.Restore(ctx, r.Param, r.Principal().Actor(), nil)
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, err
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// shown is a snapshot as the wire shows it.
func (s routes) shown(snap *fleet.Snapshot) gen.Snapshot {
	meta := snapshots.Metadata(snap)
	out := gen.Snapshot{
		ID: snap.SnapshotID, VMID: snap.VMID, UID: snap.UID, Owner: snap.Owner, TaskID: snap.TaskID, HostID: snap.HostID, TenantID: snap.TenantID,
		ParentSnapshotID: snap.ParentSnapshotID, Mode: string(snap.Mode), State: string(snap.State), Kind: string(snap.Kind),
		Comment: meta["comment"], Name: meta["name"], LayerKey: snap.LayerKey, Arch: snap.Arch, Digest: snap.Digest, SizeBytes: snap.SizeBytes,
		FreezeMs: ms(snap.Timings.Freeze), StopMs: ms(snap.Timings.Stop), TookMs: ms(snap.Timings.Took), Machine: machine(snap.Machine),
		Ephemeral: snap.Ephemeral, CreatedAt: snap.CreatedAt.UTC(), UpdatedAt: snap.UpdatedAt.UTC(), LastError: snap.LastError,
	}
	delete(meta, "comment")
	if len(meta) > 0 {
		out.Metadata = meta
	}
	if snap.RetentionUntil != nil {
		out.RetentionUntil = snap.RetentionUntil.UTC()
	}
	for _, e := range snap.Exports {
		out.ExportRef = e.Destination
		out.Exports = append(out.Exports, gen.SnapshotExport{
			Destination: e.Destination, Status: string(e.Status), RequestedAt: e.RequestedAt.UTC(), UpdatedAt: e.UpdatedAt.UTC(), LastError: e.LastError,
		})
	}
	if p, ok := s.s.Progress(snap.SnapshotID); ok {
		out.Progress = &gen.SnapshotProgress{Phase: p.Phase, DoneBytes: p.Done, TotalBytes: p.Total, BytesPerSecond: p.Rate}
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// machine names what a host has to be; what is not known is left out.
func machine(m fleet.MachineFacts) map[string]string {
	out := map[string]string{}
	for k, v := range map[string]string{
		"arch": m.Arch, "driver": m.Driver, "driver_version": m.DriverVersion, "machine": m.Machine, "accelerator": m.Accelerator,
		"cpu_model": m.CPUModel, "kernel": m.Kernel, "fused": m.Fused,
	} {
		if v != "" {
			out[k] = v
		}
	}
	for k, n := range map[string]int64{"page_size": m.PageSize, "guest_wire": int64(m.GuestWire), "cpus": int64(m.CPUs), "ram_mb": int64(m.RamMB)} {
		if n != 0 {
			out[k] = strconv.FormatInt(n, 10)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
