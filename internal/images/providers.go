package images

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// StepPull is the step of a create in which the host gets its image.
const StepPull = "pull"

// Puller is a provider whose creates first have the host pull the image. A
// host that cannot get it counts as one without room, so that another is
// asked; an image that no host could get is the caller's error.
type Puller struct {
	provider.Provider
	s      *Service
	hostID string
}

// Provider wraps the provider of a host.
func (s *Service) Provider(hostID string) (provider.Provider, error) {
	p, err := s.cfg.Hosts.Provider(hostID)
	if err != nil {
		return nil, err
	}
	return Puller{p, s, hostID}, nil
}

// Unwrap gives the host itself, for what needs no image.
func (p Puller) Unwrap() provider.Provider { return p.Provider }

// Create makes a VM whose image the host has by then.
func (p Puller) Create(ctx context.Context, req provider.CreateRequest) (provider.Created, error) {
	took, err := p.ensure(ctx, req)
	if err != nil {
		return provider.Created{}, err
	}
	late := fleet.Errorf(fleet.CodeDeadlineExceeded, "the host did not finish within %s: %w", p.s.cfg.BootTimeout, context.DeadlineExceeded).
		With(fleet.DetailLimit, p.s.cfg.BootTimeout.String())
	ctx, cancel := context.WithTimeoutCause(ctx, p.s.cfg.BootTimeout, late)
	defer cancel()
	out, err := p.Provider.Create(ctx, req)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		return out, errors.Join(late, err)
	}
	if err == nil && took > 0 {
		out.Boot.Steps = append([]fleet.StepTime{{Step: StepPull, Took: took}}, out.Boot.Steps...)
	}
	return out, err
}

// ensure has the host pull the image, and those of services, and returns how
// long that took; zero means that there was nothing to pull.
func (p Puller) ensure(ctx context.Context, req provider.CreateRequest) (time.Duration, error) {
	im, ok := p.Provider.(provider.Imager)
	images := slices.DeleteFunc(append([]string{req.Spec.Image}, req.Spec.ServiceImages...), func(i string) bool { return !p.s.cfg.Registry.IsReference(i) })
	if !ok || len(images) == 0 {
		return 0, nil
	}
	began, last := time.Now(), ""
	for _, image := range images {
		of := ""
		if image != req.Spec.Image {
			of = " of service: " + image
		}
		err := p.pull(ctx, im, image, func(text string) {
			if text += of; text != last && req.Progress != nil {
				last = text
				req.Progress(text)
			}
		})
		if fleet.CodeOf(err) == fleet.CodeUnimplemented {
			return 0, nil // it creates with what it has, or refuses
		}
		if err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

func (p Puller) pull(ctx context.Context, im provider.Imager, image string, tell func(string)) error {
	if !p.s.Holders(image)[p.hostID] {
		tell("pulling image")
	}
	pull, cancel := context.WithTimeout(ctx, p.s.cfg.PullTimeout)
	defer cancel()
	img, err := p.s.pullAt(pull, im, p.hostID, image, func(u provider.PullProgress) { tell(progressText(u)) })
	switch {
	case err == nil:
		p.s.add(p.hostID, image, img)
		return nil
	case fleet.CodeOf(err) == fleet.CodeUnimplemented, ctx.Err() != nil:
		return err
	case pull.Err() != nil:
		err = fleet.Wrap(fleet.CodeDeadlineExceeded, err, "host "+p.hostID+" did not get the image in time").
			With(fleet.DetailLimit, p.s.cfg.PullTimeout.String()).With(fleet.DetailReason, "image_registry")
	}
	return p.refusal(err)
}

// refusal tells what is wrong with the image, which no other host could
// change, from what is wrong with this host.
func (p Puller) refusal(err error) error {
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		return err
	}
	if fe.Code == fleet.CodeInvalidArgument {
		return scoped(fe)
	}
	if fe.Code != fleet.CodeUnavailable && fe.Code != fleet.CodeDeadlineExceeded || fe.Details[fleet.DetailReason] == "" {
		return err // the host itself did not answer
	}
	elsewhere := fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrNoCapacity, err), fe.Message)
	for k, v := range fe.Details {
		elsewhere = elsewhere.With(k, v)
	}
	return elsewhere.With(fleet.DetailHostID, p.hostID)
}
