package api

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// Rotator gives running guests another token and certificate.
type Rotator interface {
	Rotate(ctx context.Context, id, actor string) error
}

func (s environmentRoutes) rotateToken(w http.ResponseWriter, r *web.Request) error {
	if s.cfg.Rotator == nil {
		return fleet.Errorf(fleet.CodeUnimplemented, "this server cannot rotate tokens")
	}
	_, err := web.Once(w, r, s.cfg.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		began := time.Now()
		err := s.cfg.Rotator.Rotate(ctx, r.Param, r.Principal().Actor())
		s.cfg.Metrics.OperationCompleted("rotate_token", time.Since(began), err)
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, err
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
