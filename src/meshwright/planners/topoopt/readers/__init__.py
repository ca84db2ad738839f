"""TopoOpt's and FlexNet's file formats."""
