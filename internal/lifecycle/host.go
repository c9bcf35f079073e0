package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

func (s *recipe) createAt(ctx context.Context, b *build) error {
	p, err := s.cfg.Providers.Provider(b.hostID)
	if err != nil {
		return err
	}
	created, err := bounded(ctx, s.cfg.Limits.HostCreate, func(ctx context.Context) (provider.Created, error) {
		req := provider.CreateRequest{
			Ref: b.ref(), Spec: b.spec, Golden: provider.Golden(b.spec.Golden),
			Credentials: provider.Credentials{
				Hostname: fleet.GuestHostname(b.id), MachineID: b.creds.MachineID, Token: b.creds.Token,
				CertPEM: b.creds.CertPEM, KeyPEM: b.creds.KeyPEM,
			},
			Progress: func(sub string) { b.progress.emit(Progress{Step: StepHostCreate, Sub: sub}) },
		}
		if b.seed.SnapshotID == "" {
			return p.Create(ctx, req)
		}
		return b.createFromSeed(ctx, p, req)
	})
	if err != nil {
		return err
	}
	b.created = created
	if created.Boot.Mode != "" {
		b.record.Mode = created.Boot.Mode
	}
	for _, st := range created.Boot.Steps {
		b.record.Steps = append(b.record.Steps, fleet.StepTime{Step: StepHostCreate + "/" + st.Step, Took: st.Took})
	}
	return nil
}

// createFromSeed hands the files along that the guest must have before what ran
// in the seed goes on: its own, not those of the environment that was captured.
func (b *build) createFromSeed(ctx context.Context, p provider.Provider, req provider.CreateRequest) (provider.Created, error) {
	from, ok := provider.As[provider.Snapshotter](p)
	if !ok {
		return provider.Created{}, fleet.Errorf(fleet.CodeUnimplemented, "host %s makes nothing from snapshots: %w", b.hostID, fleet.ErrSnapshotUnsupported)
	}
	files, err := b.profileFiles()
	if err != nil {
		return provider.Created{}, err
	}
	created, err := from.CreateFromSnapshot(ctx, req, provider.Seed{
		SnapshotID: b.seed.SnapshotID, Digest: b.seed.Digest, Live: b.spec.ResumeSeed, Files: files,
		Tell: func(u provider.SnapshotProgress) {
			b.progress.emit(Progress{Step: StepHostCreate, Sub: u.Phase, Read: &u})
		},
	})
	if err == nil && created.Boot.Mode != fleet.BootSeed {
		return provider.Created{}, fleet.Errorf(fleet.CodeInternal, "host %s made a machine that is %s, not from snapshot %s", b.hostID, created.Boot.Mode, b.seed.SnapshotID)
	}
	return created, err
}

// bounded bounds one call to a host and tells running out of time from being
// cancelled.
func bounded[T any](ctx context.Context, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	late := fleet.Errorf(fleet.CodeDeadlineExceeded, "the host did not finish within %s: %w", limit, context.DeadlineExceeded).
		With(fleet.DetailLimit, limit.String())
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	v, err := call(ctx)
	return v, causeOf(ctx, err)
}

// boundedCall is bounded for calls without a result.
func boundedCall(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	_, err := bounded(ctx, limit, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

func (s *recipe) uploadProfile(ctx context.Context, b *build) error {
	files, err := b.profileFiles()
	if err != nil {
		return err
	}
	return s.upload(ctx, b, files)
}

func (s *recipe) uploadCallerFiles(ctx context.Context, b *build) error {
	return s.upload(ctx, b, b.callerFiles())
}

// expose publishes ports before the startup script, which may tell others of
// them. What undoes the VM at the host takes them back.
func (s *recipe) expose(ctx context.Context, b *build) (err error) {
	if len(b.boot.Expose) > 0 {
		b.endpoints, err = provider.Publish(ctx, b.created.Environment, b.boot.Expose)
	}
	return err
}

func (s *recipe) upload(ctx context.Context, b *build, files []fleet.GuestFile) error {
	if len(files) == 0 {
		return nil
	}
	return boundedCall(ctx, s.cfg.Limits.HostUpload, func(ctx context.Context) error {
		return b.created.Environment.Upload(ctx, files)
	})
}

// undoHostCreate ends what may have been made at the host. The intent is
// durable first: if the host cannot be reached the row says destroying, and
// the loop goes on.
func (s *recipe) undoHostCreate(ctx context.Context, b *build, cause error) error {
	if err := s.claimFailure(ctx, b, cause); err != nil {
		return err
	}
	if errors.Is(cause, fleet.ErrFenced) && b.created.Environment == nil {
		return nil // the create was refused before any effect, as a destroy would be
	}
	return s.destroyAtHost(ctx, b.hostID, b.ref())
}

func (s *core) destroyAtHost(ctx context.Context, hostID string, ref provider.Ref) error {
	if err := failpoint.Hit("lifecycle.destroy.host"); err != nil {
		return err
	}
	if hostID == "" {
		return nil // no host was ever asked to make it
	}
	p, err := s.cfg.Providers.Provider(hostID)
	if err != nil {
		return fmt.Errorf("destroy %s at host %s: %w", ref.ID, hostID, err)
	}
	err = boundedCall(ctx, s.cfg.Limits.HostDestroy, func(ctx context.Context) error { return p.Destroy(ctx, ref) })
	if err != nil {
		return fmt.Errorf("destroy %s at host %s: %w", ref.ID, hostID, err)
	}
	return nil
}
