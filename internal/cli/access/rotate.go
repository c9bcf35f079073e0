package access

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// mostIDs is how many ids are completed: as many as the API's largest page has.
const mostIDs = 200

// RotateToken is "fuse rotate-token".
func RotateToken(t kit.Tools) *cobra.Command {
	a := &app{t}
	return &cobra.Command{
		Use: "rotate-token ID...", Short: "Give a running environment's guest another token and certificate",
		Long: "rotate-token replaces the token and the certificate of a guest. When it returns the\n" +
			"new ones count and the old ones are dead; commands that run go on.",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.Environments(mostIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.Server()
			if err != nil {
				return err
			}
			for _, id := range args {
				if err := (client.Credentials{API: api}).RotateToken(cmd.Context(), id); err != nil {
					return err
				}
				fmt.Fprintln(a.Out, a.Cell(id))
			}
			return nil
		},
	}
}
