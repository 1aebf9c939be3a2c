"""The server of JupyterLab, as ./launch/lab starts it.

A step of a view is several messages. By default the kernel of the system holds back a message until the browser has
confirmed the one before, which a browser may put off for 40 ms: almost half of what a step then takes.
"""

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class AtOnce(ZMQChannelsWebsocketConnection):
    """The connection of a page to a kernel; what the kernel says is sent when it is said."""

    def connect(self):
        self.websocket_handler.set_nodelay(True)
        return super().connect()


c = get_config()  # noqa: F821 (Jupyter gives it)
c.ServerApp.kernel_websocket_connection_class = AtOnce
