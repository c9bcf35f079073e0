package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Snapshots are the calls about snapshots and what is made of them.
type Snapshots struct{ API *API }

// Take takes a snapshot of a running environment and waits until it is ready.
func (s Snapshots) Take(ctx context.Context, vmID string, req gen.CreateSnapshot) (snap gen.Snapshot, err error) {
	resp, err := s.API.raw.CreateSnapshot(ctx, vmID, &gen.CreateSnapshotParams{}, req)
	return snap, decode(resp, err, &snap)
}

// Get returns one snapshot.
func (s Snapshots) Get(ctx context.Context, id string) (snap gen.Snapshot, err error) {
	resp, err := s.API.raw.GetSnapshot(ctx, id)
	return snap, decode(resp, err, &snap)
}

// List returns one page, the newest first.
func (s Snapshots) List(ctx context.Context, q gen.ListSnapshotsParams) (list gen.SnapshotList, err error) {
	resp, err := s.API.raw.ListSnapshots(ctx, &q)
	return list, decode(resp, err, &list)
}

// Restore puts the environment of a snapshot back to it.
func (s Snapshots) Restore(ctx context.Context, id string) error {
	resp, err := s.API.raw.ActOnSnapshot(ctx, id, &gen.ActOnSnapshotParams{Action: "restore"})
	return decode(resp, err, nil)
}

// Remove deletes a snapshot and its bytes.
func (s Snapshots) Remove(ctx context.Context, id string) error {
	resp, err := s.API.raw.DeleteSnapshot(ctx, id, &gen.DeleteSnapshotParams{})
	return decode(resp, err, nil)
}

// Fork makes environments that go on from where another one is.
func (s Snapshots) Fork(ctx context.Context, vmID string, req gen.ForkEnvironment) (out gen.Forks, err error) {
	if req.Count > 1 {
		return out, action{s.API, vmID, "fork"}.send(ctx, req, &out)
	}
	var env gen.Environment
	if err := (action{s.API, vmID, "fork"}).send(ctx, req, &env); err != nil {
		return out, err
	}
	return gen.Forks{Environments: []gen.Environment{env}, SnapshotID: env.SeedSnapshotID}, nil
}

// Pause lets an environment stand still.
func (s Snapshots) Pause(ctx context.Context, vmID string) (gen.Environment, error) {
	return s.API.act(ctx, vmID, "pause")
}

// Resume lets a paused environment go on.
func (s Snapshots) Resume(ctx context.Context, vmID string) (gen.Environment, error) {
	return s.API.act(ctx, vmID, "resume")
}

// action is an action on an environment that has a body.
type action struct {
	api      *API
	id, name string
}

func (a action) send(ctx context.Context, body, into any) error {
	doc, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	resp, err := a.api.raw.ActOnEnvironmentWithBody(ctx, a.id, &gen.ActOnEnvironmentParams{Action: a.name}, "application/json", bytes.NewReader(doc))
	return decode(resp, err, into)
}
