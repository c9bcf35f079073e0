package cli

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
)

func hostPurgeCmd(a *app) *cobra.Command {
	var fleetID string
	var yes, force bool
	cmd := &cobra.Command{
		Use: "purge HOST --fleet ID", Short: "Destroy what another fleet left on a host", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeHosts(),
		Long: "purge destroys the environments of a fleet whose control plane is gone for good; 'fuse\nhost get' names the fleets that have some there. Without --yes it says what it would\ndo. The host refuses while that fleet is led, unless --force is given.",
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			if fleetID == "" {
				return usagef("--fleet is needed: the fleet whose environments are to go")
			}
			api, err := a.server()
			if err != nil {
				return err
			}
			if !yes {
				h, err := api.Host(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return usagef("%d environments of fleet %s on host %s would be destroyed, with everything in them: add --yes to confirm",
					h.ForeignFleets[fleetID], fleetID, args[0])
			}
			done, err := api.PurgeHost(cmd.Context(), args[0], gen.PurgeHost{FleetID: fleetID, Force: force})
			if err != nil {
				return err
			}
			if format == "json" {
				return a.printJSON(done)
			}
			fmt.Fprintf(a.Streams.Out, "%d destroyed\n", *done.Destroyed)
			if n := *done.Failed; n > 0 {
				a.progressf("%d could not be destroyed yet; the host keeps trying", n)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&fleetID, "fleet", "", "`id` of the fleet whose environments are to go")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "confirm")
	cmd.Flags().BoolVar(&force, "force", false, "also if that fleet was led on the host a moment ago")
	return cmd
}

// foreign renders the environments of other fleets on a host.
func foreign(h gen.HostInfo) (fields [][2]string) {
	for _, id := range slices.Sorted(maps.Keys(h.ForeignFleets)) {
		who := "fleet " + id
		if id == "" {
			who = "an owner that cannot be read"
		}
		fields = append(fields, [2]string{"foreign", fmt.Sprintf("%d of %s", h.ForeignFleets[id], who)})
	}
	return fields
}
