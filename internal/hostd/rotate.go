package hostd

import (
	"context"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// rotateTimeout bounds the rotation of one guest's token.
const rotateTimeout = 30 * time.Second

// Rotate replaces a running guest's token and certificate. Once begun it goes
// on when the caller leaves; a repeat of the same number is success.
func (h *guests) Rotate(ctx context.Context, f Fence, ref Ref, r driver.Rotation) error {
	if r.Number < 1 || r.Token == "" || len(r.CertPEM) == 0 || len(r.KeyPEM) == 0 {
		return fleet.Errorf(fleet.CodeInvalidArgument, "a rotation needs a number from 1 on, a token, a certificate and its key")
	}
	l, inst, err := h.guest(f, ref)
	if err != nil {
		return err
	}
	rotator, ok := inst.(driver.Rotator)
	if !ok {
		return fleet.Errorf(fleet.CodeUnimplemented, "the driver of this host cannot rotate tokens")
	}
	unlock, err := h.locks.Take(ctx, ref.UID)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, release := l.bind(context.WithoutCancel(ctx))
	defer release()
	ctx, cancel := context.WithTimeout(ctx, rotateTimeout)
	defer cancel()
	begun := time.Now()
	if err := failpoint.Hit("hostd.rotate.driver"); err != nil {
		return err
	}
	err = rotator.Rotate(ctx, r)
	if hit := failpoint.Hit("hostd.rotate.answer"); hit != nil {
		return hit
	}
	var stale *driver.StaleRotationError
	switch {
	case errors.As(err, &stale):
		err = fleet.Errorf(fleet.CodeConflict, "the guest has had rotation %d of its token, so rotation %d is none", stale.Last, stale.Number).
			With(fleet.DetailRotation, strconv.FormatInt(stale.Last, 10)).
			With(fleet.DetailRemedy, "rotate it again: the number is known now")
	case err != nil:
		err = refusal.Guest(ctx, l.ctx, inst, err)
	}
	h.metrics.Observe(verbRotate, begun, err)
	return err
}

// verbRotate names a rotation in the metrics. Its number tells a repeat, so no
// answer is kept.
const verbRotate = "rotate"

// RotateVM translates for Rotate.
func (s vmService) RotateVM(ctx context.Context, req *connect.Request[hostwirev1.RotateVMRequest]) (*connect.Response[hostwirev1.RotateVMResponse], error) {
	m := req.Msg
	cred := m.GetCredentials()
	err := s.h.Rotate(ctx, fenceOf(m.GetFence()), refOf(m.GetRef()), driver.Rotation{
		Number: m.GetNumber(), Token: cred.GetToken(), CertPEM: cred.GetCertPem(), KeyPEM: cred.GetKeyPem(),
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.RotateVMResponse{}), nil
}
